// The list of chats in the sidebar, and a chat as a file.

import { $, download, el } from "./dom.js";

/** `open(id)`, `rename(chat, title)`, `remove(chat)`. */
export class ChatList {
  constructor(actions) {
    this.actions = actions;
    this.chats = [];
    this.current = null;
    this.renaming = false;
    $("search").addEventListener("input", () => this.draw());
  }

  show(chats, current) {
    this.chats = chats;
    this.current = current;
    this.draw();
  }

  draw() {
    // What somebody is typing into must stay; the list is drawn afterwards.
    if (this.renaming) return;
    const words = $("search").value.trim().toLowerCase();
    const found = this.chats.filter((chat) => !words || matches(chat, words));
    $("chats").replaceChildren(...found.map((chat) => this.entry(chat)));
    if (!found.length) $("chats").append(el("p", { className: "empty", textContent: words ? "No chat holds this." : "No chats yet." }));
  }

  entry(chat) {
    const open = el("button", {
      className: "open", textContent: chat.title, title: chat.title,
      "aria-current": chat.id === this.current ? "page" : undefined,
      onclick: () => this.actions.open(chat.id),
    });
    const rename = el("button", { className: "small", textContent: "Rename", "aria-label": `Rename ${chat.title}`, onclick: () => this.rename(chat, row) });
    const remove = el("button", { className: "small", textContent: "Delete", "aria-label": `Delete ${chat.title}`, onclick: () => this.actions.remove(chat) });
    const row = el("div", { className: "chat", "data-id": chat.id }, open, rename, remove);
    return row;
  }

  rename(chat, row) {
    const input = el("input", {
      value: chat.title, "aria-label": "Title",
      onkeydown: (event) => {
        if (event.key === "Enter") done(true);
        else if (event.key === "Escape") {
          event.stopPropagation();
          done(false);
        }
      },
      onblur: () => done(true),
    });
    let over = false;
    const done = (keep) => {
      if (over) return;
      over = true;
      this.renaming = false;
      const title = input.value.trim();
      if (keep && title && title !== chat.title) this.actions.rename(chat, title);
      else this.draw();
    };
    this.renaming = true;
    row.replaceChildren(input);
    input.select();
  }
}

function matches(chat, words) {
  return [chat.title, ...chat.messages.map((message) => message.content)].some((text) => text.toLowerCase().includes(words));
}

export function titleOf(text) {
  const line = text.trim().split("\n")[0] || "New chat";
  return line.length > 60 ? `${line.slice(0, 60)}…` : line;
}

const HEADINGS = { user: "You", assistant: "Model", tool: "Tool" };

/** Saves a chat as "md" or "json". */
export function exportChat(chat, kind) {
  const name = chat.title.replace(/[^\p{L}\p{N} _-]+/gu, "").trim().slice(0, 40) || "chat";
  if (kind === "json") {
    download(`${name}.json`, "application/json", JSON.stringify(chat, null, 2));
    return;
  }
  const parts = [`# ${chat.title}`];
  if (chat.system) parts.push(`## System\n\n${chat.system}`);
  for (const message of chat.messages) {
    const lines = [`## ${HEADINGS[message.role]}`];
    for (const file of message.attachments ?? []) lines.push(`*Attached: ${file.fileName}*`);
    if (message.thinking) lines.push(`<details><summary>Thoughts</summary>\n\n${message.thinking}\n\n</details>`);
    if (message.content) lines.push(message.content);
    for (const call of message.tool_calls ?? []) lines.push(`Calls \`${call.name}\`:\n\n\`\`\`json\n${JSON.stringify(call.arguments, null, 2)}\n\`\`\``);
    parts.push(lines.join("\n\n"));
  }
  download(`${name}.md`, "text/markdown", `${parts.join("\n\n")}\n`);
}
