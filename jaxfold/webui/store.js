// Chats and settings, kept in this browser only. Tabs tell each other what has changed.

const CHATS = "chats";
const channel = "BroadcastChannel" in window ? new BroadcastChannel("jaxfold") : null;

function open() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open("jaxfold", 1);
    request.onupgradeneeded = () => request.result.createObjectStore(CHATS, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The chats. Where the browser keeps nothing (private windows) they last as long as the page. */
export class Store {
  constructor() {
    this.memory = new Map();
    this.db = open().catch(() => null);
  }

  async run(mode, work) {
    const db = await this.db;
    if (db === null) return undefined;
    return new Promise((resolve, reject) => {
      const transaction = db.transaction(CHATS, mode);
      const request = work(transaction.objectStore(CHATS));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onerror = transaction.onabort = () => reject(transaction.error);
    });
  }

  /** Every chat without its messages, the one used last first. */
  async list() {
    const found = (await this.db) === null ? [...this.memory.values()] : await this.run("readonly", (s) => s.getAll());
    return found.sort((a, b) => b.updated - a.updated);
  }

  async get(id) {
    return (await this.db) === null ? this.memory.get(id) : this.run("readonly", (s) => s.get(id));
  }

  async put(chat) {
    const copy = JSON.parse(JSON.stringify(chat));
    this.memory.set(copy.id, copy);
    await this.run("readwrite", (s) => s.put(copy));
    channel?.postMessage({ id: copy.id });
  }

  async remove(id) {
    this.memory.delete(id);
    await this.run("readwrite", (s) => s.delete(id));
    channel?.postMessage({ id });
  }

  /** Calls back with the id of a chat that another tab has changed or removed. */
  onChange(callback) {
    channel?.addEventListener("message", (event) => callback(event.data.id));
  }
}

/** A value in localStorage, or nothing where that is closed or full. */
export const local = {
  get(name) {
    try {
      return JSON.parse(localStorage.getItem(`jaxfold.${name}`));
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(`jaxfold.${name}`, JSON.stringify(value));
    } catch {
      // A full or closed store costs the setting, not the page.
    }
  },
};
