// The box one writes in: text, attached files, keys.

import { $, el, size } from "./dom.js";
import { upload } from "./api.js";

const MAX_PREVIEW = 160;

/** `submit(text, attachments)`, `stop()`, `editLast()`. */
export class Composer {
  constructor(actions) {
    this.actions = actions;
    this.files = [];
    this.running = false;
    this.input = $("input");
    this.input.addEventListener("input", () => this.grow());
    this.input.addEventListener("keydown", (event) => this.key(event));
    this.input.addEventListener("paste", (event) => {
      if (event.clipboardData.files.length) {
        event.preventDefault();
        this.add(event.clipboardData.files);
      }
    });
    $("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    $("stop").addEventListener("click", () => actions.stop());
    $("attach").addEventListener("click", () => $("files").click());
    $("files").addEventListener("change", () => {
      this.add($("files").files);
      $("files").value = "";
    });
    this.watchDrops();
  }

  key(event) {
    if (event.isComposing) return;
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.submit();
    } else if (event.key === "ArrowUp" && this.input.value === "" && !this.running) {
      event.preventDefault();
      this.actions.editLast();
    }
  }

  grow() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, window.innerHeight * 0.4)}px`;
  }

  submit() {
    const text = this.input.value.trim();
    if (this.running || (!text && !this.files.length)) return;
    if (this.files.some((file) => file.pending)) return this.say("A file is still on its way.");
    const bad = this.files.find((file) => file.problem);
    if (bad) return this.say(`${bad.fileName}: ${bad.problem} Remove it to send.`);
    const attachments = this.files.map(({ tag, pending, problem, ...kept }) => kept);
    if (this.actions.submit(text, attachments) === false) return;
    this.input.value = "";
    this.files = [];
    $("chips").replaceChildren();
    this.say("");
    this.grow();
  }

  say(text) {
    $("notice").textContent = text;
    $("notice").hidden = !text;
  }

  setRunning(running) {
    this.running = running;
    $("send").hidden = running;
    $("stop").hidden = !running;
  }

  focus() {
    this.input.focus();
  }

  add(list) {
    for (const file of list) this.attach(file);
  }

  async attach(file) {
    const entry = { fileName: file.name, size: file.size, pending: true };
    const bar = el("progress", { max: 1, value: 0 });
    const label = el("span", { textContent: `${file.name} (${size(file.size)})` });
    const remove = el("button", {
      type: "button", textContent: "×", "aria-label": `Remove ${file.name}`,
      onclick: () => {
        this.files = this.files.filter((other) => other !== entry);
        entry.tag.remove();
        this.say("");
      },
    });
    entry.tag = el("span", { className: "file" }, label, bar, remove);
    this.files.push(entry);
    $("chips").append(entry.tag);
    entry.preview = await preview(file);
    if (entry.preview) entry.tag.prepend(el("img", { src: entry.preview, alt: "" }));
    try {
      const sent = await upload(file, (part) => (bar.value = part));
      const { file: name, mediaType, textContent, fileBacked, needsVision, warning } = sent;
      Object.assign(entry, { file: name, mediaType, textContent, fileBacked: fileBacked === true });
      const unreadable = !["text", "pdf"].includes(mediaType) || needsVision;
      if (unreadable && !this.vision) entry.problem = needsVision ? warning : `This model does not take ${mediaType} files.`;
      label.title = textContent?.slice(0, 1000) ?? "";
    } catch (error) {
      entry.problem = error.message;
    }
    entry.pending = false;
    bar.remove();
    if (entry.problem) {
      entry.tag.classList.add("bad");
      if (this.files.includes(entry)) this.say(`${entry.fileName}: ${entry.problem}`);
    } else entry.tag.classList.add("ready");
  }

  watchDrops() {
    const carries = (event) => event.dataTransfer?.types.includes("Files");
    let depth = 0;
    window.addEventListener("dragenter", (event) => {
      if (carries(event) && depth++ === 0) $("drop").hidden = false;
    });
    window.addEventListener("dragleave", (event) => {
      if (carries(event) && --depth === 0) $("drop").hidden = true;
    });
    window.addEventListener("dragover", (event) => carries(event) && event.preventDefault());
    window.addEventListener("drop", (event) => {
      if (!carries(event)) return;
      event.preventDefault();
      depth = 0;
      $("drop").hidden = true;
      this.add(event.dataTransfer.files);
    });
  }
}

/** A small picture of an image, as a data URL that a chat can keep; nothing for other files. */
async function preview(file) {
  if (!file.type.startsWith("image/") || file.type === "image/svg+xml" || file.size > 30e6) return undefined;
  try {
    const bitmap = await createImageBitmap(file, { resizeHeight: MAX_PREVIEW, resizeQuality: "medium" });
    const canvas = el("canvas", { width: bitmap.width, height: bitmap.height });
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    bitmap.close();
    return canvas.toDataURL("image/jpeg", 0.7);
  } catch {
    return undefined;
  }
}
