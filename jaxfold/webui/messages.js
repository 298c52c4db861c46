// One message on the page: its text, thoughts, tool calls, attachments, figures and buttons.

import { copyButton, el, size } from "./dom.js";
import { MarkdownView } from "./markdown.js";

const NAMES = { user: "You", assistant: "Model", tool: "Tool result" };

/** `actions`: edit(message, text), remove(message), regenerate(message), answer(call, text). */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.thought = el("details", { className: "thinking", hidden: true });
    this.summary = el("summary", { textContent: "Thinking" });
    this.thoughtBody = el("div", { className: "thought" });
    this.thought.append(this.summary, this.thoughtBody);
    this.body = el("div", { className: message.role === "assistant" ? "text markdown" : "text plain" });
    this.calls = el("div", { className: "calls" });
    this.shownCalls = 0;
    this.files = el("div", { className: "files" });
    this.note = el("p", { className: "note", hidden: true, role: "status" });
    this.figures = el("span", { className: "figures" });
    this.buttons = el("div", { className: "buttons" });
    const who = message.role === "tool" ? `${NAMES.tool}: ${message.tool_name ?? ""}` : NAMES[message.role];
    this.element = el(
      "article",
      { className: `message ${message.role}`, "data-id": message.id, "aria-label": who },
      el("div", { className: "who", textContent: who }),
      this.files, this.thought, this.body, this.calls, this.note,
      el("div", { className: "foot" }, this.figures, this.buttons),
    );
    this.markdown = message.role === "assistant" ? new MarkdownView(this.body) : null;
    this.addButtons();
    this.update(false);
  }

  addButtons() {
    const { message, actions } = this;
    const button = (label, click) => el("button", { type: "button", textContent: label, onclick: click });
    this.buttons.append(copyButton(() => message.content));
    if (message.role === "assistant") this.buttons.append(button("Regenerate", () => actions.regenerate(message)));
    if (message.role !== "tool") this.buttons.append(button("Edit", () => this.edit()));
    this.buttons.append(button("Delete", () => actions.remove(message)));
  }

  /** Shows what the message holds now; `running` while its reply is still coming. */
  update(running) {
    const { message } = this;
    this.element.classList.toggle("running", running);
    this.element.setAttribute("aria-busy", String(running));
    this.updateThought(running);
    if (this.markdown) this.markdown.update(message.content);
    else this.body.textContent = message.content;
    const calls = message.tool_calls ?? [];
    for (; this.shownCalls < calls.length; this.shownCalls++) this.calls.append(this.call(calls[this.shownCalls]));
    if (!this.files.childElementCount) this.files.append(...(message.attachments ?? []).map(fileTag));
    this.updateNote(running);
    this.figures.textContent = running ? "" : figures(message.stats);
  }

  updateThought(running) {
    const { thinking, content, thoughtSeconds } = this.message;
    if (!thinking) return;
    this.thought.hidden = false;
    this.thoughtBody.textContent = thinking;
    const open = running && !content;
    this.summary.textContent = open ? "Thinking …" : `Thoughts${thoughtSeconds ? ` (${thoughtSeconds.toFixed(1)} s)` : ""}`;
  }

  updateNote(running) {
    const { message } = this;
    const note = message.error
      ? message.error
      : message.stats?.truncated
        ? "The reply was cut at the limit of its length."
        : message.stopped && !running
          ? "Stopped."
          : "";
    this.note.hidden = !note;
    this.note.textContent = note;
    this.note.classList.toggle("error", Boolean(message.error));
  }

  call(call) {
    const answer = el("textarea", { rows: 2, placeholder: "The tool's result", "aria-label": `Result of ${call.name}` });
    const send = el("button", {
      type: "button", textContent: "Send result",
      onclick: () => answer.value && this.actions.answer(call, answer.value),
    });
    return el(
      "div", { className: "call" },
      el("div", { className: "call-name", textContent: `Calls ${call.name}` }),
      el("pre", { textContent: JSON.stringify(call.arguments, null, 2) }),
      el("div", { className: "row" }, answer, send),
    );
  }

  edit() {
    const { message } = this;
    if (this.element.querySelector(".editor")) return;
    const area = el("textarea", { value: message.content, rows: Math.min(12, message.content.split("\n").length + 1), "aria-label": "Edit message" });
    const close = () => {
      form.remove();
      this.body.hidden = false;
    };
    const label = message.role === "user" ? "Send again" : "Save";
    const form = el(
      "form",
      {
        className: "editor",
        onsubmit: (event) => {
          event.preventDefault();
          close();
          this.actions.edit(message, area.value);
        },
        onkeydown: (event) => {
          if (event.key === "Escape") {
            event.stopPropagation();
            close();
          } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
        },
      },
      area,
      el("div", { className: "row" }, el("button", { textContent: label, className: "primary" }), el("button", { type: "button", textContent: "Cancel", onclick: close })),
    );
    this.body.hidden = true;
    this.body.after(form);
    area.focus();
  }
}

function fileTag(file) {
  const tag = el("span", { className: "file", title: file.fileName });
  if (file.preview) tag.append(el("img", { src: file.preview, alt: "" }));
  tag.append(el("span", { textContent: `${file.fileName} (${size(file.size)})` }));
  return tag;
}

/** "187 tokens · 87.2 tok/s · 2.1 s · prompt 512, 82 % from the cache" */
export function figures(stats) {
  if (!stats) return "";
  const prompt = `prompt ${stats.promptTokens}, ${Math.round(stats.kvReusePercent)} % from the cache`;
  return [`${stats.tokenCount} tokens`, `${stats.tokPerSec.toFixed(1)} tok/s`, `${stats.elapsed.toFixed(1)} s`, prompt].join(" · ");
}
