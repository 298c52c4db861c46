// A running chat: what is sent, what comes back, and what is done with it.

import { turn } from "./api.js";
import { newId } from "./dom.js";

const SAVE_MS = 1000;

export function newChat() {
  return { id: newId(), title: "New chat", created: Date.now(), updated: Date.now(), system: "", messages: [] };
}

export function newMessage(role, content, more = {}) {
  return { id: newId(), role, content, ...more };
}

/** The messages as the server takes them: texts of attached files are written into the message that brought them. */
export function wireMessages(chat) {
  const sent = chat.system ? [{ role: "system", content: chat.system }] : [];
  for (const message of chat.messages) {
    if (message.role === "tool") {
      sent.push({ role: "tool", content: message.content, tool_name: message.tool_name });
      continue;
    }
    if (message.role === "assistant") {
      if (!message.content && !message.tool_calls?.length) continue;
      const calls = message.tool_calls?.map(({ name, arguments: given }) => ({ function: { name, arguments: given } }));
      sent.push({ role: "assistant", content: message.content, tool_calls: calls ?? null });
      continue;
    }
    const files = message.attachments ?? [];
    const texts = files.filter((file) => file.textContent).map((file) => `[File: ${file.fileName}]\n${file.textContent}\n[End of file]\n`);
    const backed = files.filter((file) => file.fileBacked).map(({ file, fileName, mediaType }) => ({ file, fileName, mediaType, fileBacked: true }));
    const images = files.filter((file) => file.mediaType === "image").map((file) => file.file);
    sent.push({
      role: "user", content: texts.join("") + message.content,
      imagePaths: images.length ? images : null, attachments: backed.length ? backed : null,
    });
  }
  return sent;
}

/** One reply into `message`, a piece at a time. `onPiece` draws, `onSave` keeps; neither is called without need. */
export class Run {
  constructor(chat, message, fields, { onPiece, onSave }) {
    this.chat = chat;
    this.message = message;
    this.fields = fields;
    this.onPiece = onPiece;
    this.onSave = onSave;
    this.abort = new AbortController();
    this.waiting = false;
    this.saved = performance.now();
  }

  stop() {
    this.message.stopped = true;
    this.abort.abort();
  }

  async go() {
    const { message } = this;
    // Until the last frame is there the reply counts as stopped: so it does after the page was closed in its middle.
    message.stopped = true;
    this.began = performance.now();
    try {
      await turn({ messages: wireMessages(this.chat), ...this.fields }, this.abort.signal, (frame) => this.take(frame));
    } catch (error) {
      if (error.name !== "AbortError") message.error = error.message;
    }
    this.over = true;
    this.onPiece(message, false);
    await this.onSave(this.chat);
  }

  take(frame) {
    const { message } = this;
    if (frame.thinking !== undefined) message.thinking = (message.thinking ?? "") + frame.thinking;
    if (frame.token !== undefined) {
      if (message.thinking && !message.content) message.thoughtSeconds = (performance.now() - this.began) / 1000;
      message.content += frame.token;
    }
    if (frame.replace !== undefined) message.content = frame.replace;
    if (frame.tool_calls !== undefined) message.tool_calls = [...(message.tool_calls ?? []), ...frame.tool_calls];
    if (frame.done) {
      const { tokenCount, elapsed, tokPerSec, truncated, promptTokens, kvReusedTokens, kvReusePercent } = frame;
      message.stats = { tokenCount, elapsed, tokPerSec, truncated, promptTokens, kvReusedTokens, kvReusePercent };
      message.stopped = frame.aborted;
      if (frame.error) message.error = frame.error;
    }
    this.draw();
  }

  /** At most once a frame of the screen; a hidden tab has no frames, and nobody looks at it. */
  draw() {
    if (this.waiting) return;
    this.waiting = true;
    const next = document.hidden ? (work) => setTimeout(work, 250) : requestAnimationFrame;
    next(() => {
      this.waiting = false;
      if (this.over) return;
      this.onPiece(this.message, true);
      if (performance.now() - this.saved > SAVE_MS) {
        this.saved = performance.now();
        this.onSave(this.chat);
      }
    });
  }
}
