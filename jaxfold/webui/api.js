// Talks to the server: JSON, the stream of a turn, uploads with progress. Knows the API key.

import { local } from "./store.js";

let key = sessionStorage.getItem("jaxfold.key") ?? local.get("key") ?? "";
let session = null;
let askForKey = async () => null;

/** `ask` shows a dialog and gives {key, keep}, or null. */
export function onMissingKey(ask) {
  askForKey = ask;
}

export function setKey(value, keep) {
  key = value;
  sessionStorage.setItem("jaxfold.key", value);
  local.set("key", keep ? value : null);
}

const headers = (more = {}) => (key ? { ...more, Authorization: `Bearer ${key}` } : more);

/** What the server said was wrong, in its words. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function refusal(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : (error?.message ?? message);
  } catch {
    // Not JSON: a proxy in between.
  }
  return new Refusal(response.status, message);
}

/** fetch, asking once for a key where one is needed. */
async function call(path, options = {}, asked = false) {
  const response = await fetch(path, { ...options, headers: headers(options.headers) });
  if (response.status === 401 && !asked) {
    const given = await askForKey();
    if (given) {
      setKey(given.key, given.keep);
      return call(path, options, true);
    }
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

const json = (value) => ({ method: "POST", body: JSON.stringify(value), headers: { "Content-Type": "application/json" } });

export const models = async () => (await call("/api/models")).json();

async function sessionId() {
  session ??= (await (await call("/api/sessions", json({}))).json()).sessionId;
  return session;
}

export function endSession() {
  if (session) fetch(`/api/sessions/${session}`, { method: "DELETE", keepalive: true, headers: headers() }).catch(() => {});
  session = null;
}

/** One turn: each frame goes to `onFrame`. Ends with the frame that has `done`, or throws. */
export async function turn(body, signal, onFrame) {
  let response;
  try {
    response = await call("/api/chat", { ...json({ ...body, sessionId: await sessionId() }), signal });
  } catch (error) {
    if (!(error instanceof Refusal && error.status === 404)) throw error;
    // The server was started again and knows no session of before.
    session = null;
    response = await call("/api/chat", { ...json({ ...body, sessionId: await sessionId() }), signal });
  }
  let done = false;
  for await (const data of events(response.body)) {
    const frame = JSON.parse(data);
    done ||= frame.done === true;
    onFrame(frame);
  }
  if (!done) throw new Error("The connection ended before the reply did.");
}

/** The data of Server-Sent Events, however the bytes are cut. Comments and other fields are skipped. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const lines = part.split("\n").filter((line) => line.startsWith("data:"));
      if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
    }
  }
}

/** Sends a file; `onProgress` gets the part that is sent, 0 to 1. */
export function upload(file, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    const form = new FormData();
    form.append("file", file, file.name);
    request.open("POST", "/api/upload");
    for (const [name, value] of Object.entries(headers())) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => event.lengthComputable && onProgress(event.loaded / event.total);
    request.responseType = "json";
    request.onload = () => {
      if (request.status === 200) resolve(request.response);
      else reject(new Refusal(request.status, request.response?.error ?? `The server answered ${request.status}.`));
    };
    request.onerror = () => reject(new Error("The file could not be sent."));
    request.send(form);
  });
}
