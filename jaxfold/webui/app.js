// The page: one chat open, replies running in any of them, everything kept in this browser.

import { endSession, models as askModels, onMissingKey, setKey } from "./api.js";
import { ChatList, exportChat, titleOf } from "./chats.js";
import { Composer } from "./composer.js";
import { $, el } from "./dom.js";
import { MessageView } from "./messages.js";
import { Panel } from "./panel.js";
import { Store, local } from "./store.js";
import { Run, newChat, newMessage } from "./talk.js";

const NEAR_END = 48;
const store = new Store();
const runs = new Map();
const views = new Map();
let chat = newChat();
let served = null;

const panel = new Panel();
const composer = new Composer({ submit, stop: () => runs.get(chat.id)?.stop(), editLast });
const list = new ChatList({ open, rename, remove: removeChat });
const actions = { edit, remove: removeMessage, regenerate, answer };

// ---- the open chat

async function save(which) {
  await store.put(which).catch((error) => composer.say(`This chat cannot be kept: ${error?.message ?? "no space"}`));
}

async function refreshList() {
  list.show(await store.list(), chat.id);
}

async function open(id) {
  const found = runs.get(id)?.chat ?? (await store.get(id));
  show(found ?? newChat());
  closeMenu();
}

function show(next) {
  chat = next;
  sessionStorage.setItem("jaxfold.chat", chat.id);
  views.clear();
  $("messages").replaceChildren();
  for (const message of chat.messages) draw(message, runs.get(chat.id)?.message === message);
  if (!chat.messages.length) $("messages").append(el("p", { className: "welcome", textContent: "Ask something, or drop a file." }));
  $("system").value = chat.system;
  composer.setRunning(runs.has(chat.id));
  updateMeter();
  toEnd();
  refreshList();
  composer.focus();
}

/** Shows a message as it is now. A message of a chat that is not open is left alone. */
function draw(message, running) {
  const follow = nearEnd();
  let view = views.get(message.id);
  if (view) view.update(running);
  else {
    $("messages").querySelector(".welcome")?.remove();
    view = new MessageView(message, actions);
    views.set(message.id, view);
    $("messages").append(view.element);
    view.update(running);
  }
  if (follow) toEnd();
}

function keepOnly(messages) {
  const kept = new Set(messages.map((message) => message.id));
  for (const [id, view] of views) {
    if (kept.has(id)) continue;
    view.element.remove();
    views.delete(id);
  }
  chat.messages = messages;
}

// ---- replies

function submit(text, attachments) {
  if (panel.tools() === null) {
    showPanel(true);
    return false;
  }
  if (!chat.messages.length) chat.title = titleOf(text || attachments[0].fileName);
  const message = newMessage("user", text, attachments.length ? { attachments } : {});
  chat.messages.push(message);
  draw(message, false);
  toEnd();
  reply();
  return true;
}

/** The model's next message. A reply is made from its request alone, so another one takes another seed. */
async function reply({ again = false } = {}) {
  const fields = { ...panel.sampling(), think: panel.thinks(), tools: panel.tools() ?? [] };
  if (again && fields.seed === undefined) fields.seed = crypto.getRandomValues(new Uint32Array(1))[0];
  const message = newMessage("assistant", "");
  const run = new Run(chat, message, fields, {
    onPiece: (one, running) => {
      if (chat === run.chat) draw(one, running);
    },
    onSave: save,
  });
  runs.set(chat.id, run);
  // The request is built before the empty reply is part of the chat.
  run.going = run.go();
  chat.messages.push(message);
  chat.updated = Date.now();
  draw(message, true);
  composer.setRunning(true);
  await save(chat);
  refreshList();
  await run.going;
  runs.delete(run.chat.id);
  if (chat === run.chat) {
    composer.setRunning(false);
    updateMeter();
  }
}

function idle() {
  if (!runs.has(chat.id)) return true;
  composer.say("Stop the reply first.");
  return false;
}

function regenerate(message) {
  if (!idle()) return;
  keepOnly(chat.messages.slice(0, chat.messages.indexOf(message)));
  reply({ again: true });
}

async function edit(message, text) {
  if (!idle()) return;
  message.content = text;
  draw(message, false);
  if (message.role === "user") {
    keepOnly(chat.messages.slice(0, chat.messages.indexOf(message) + 1));
    await reply();
  } else await save(chat);
}

function editLast() {
  const last = chat.messages.findLast((message) => message.role === "user");
  if (last) views.get(last.id).edit();
}

async function removeMessage(message) {
  if (!idle()) return;
  keepOnly(chat.messages.filter((other) => other !== message));
  updateMeter();
  await save(chat);
}

/** The result of a tool call; the model goes on when every call of its message has one. */
function answer(call, text) {
  if (!idle()) return;
  const message = newMessage("tool", text, { tool_name: call.name });
  chat.messages.push(message);
  draw(message, false);
  const asked = chat.messages.findLast((other) => other.role === "assistant");
  const given = chat.messages.length - 1 - chat.messages.indexOf(asked);
  if (given >= (asked?.tool_calls?.length ?? 0)) reply();
  else save(chat);
}

// ---- chats

async function rename(which, title) {
  const target = which.id === chat.id ? chat : which;
  target.title = title;
  await save(target);
  refreshList();
}

async function removeChat(which) {
  if (!confirm(`Delete "${which.title}"?`)) return;
  runs.get(which.id)?.stop();
  await runs.get(which.id)?.going;
  await store.remove(which.id);
  if (which.id === chat.id) show(newChat());
  else refreshList();
}

store.onChange(async (id) => {
  if (id === chat.id && !runs.has(id)) {
    const found = await store.get(id);
    if (found) show(found);
    else if (chat.messages.length) show(newChat());
  }
  refreshList();
});

// ---- around it

function nearEnd() {
  const box = $("messages");
  return box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_END;
}

function toEnd() {
  $("messages").scrollTop = $("messages").scrollHeight;
}

function updateMeter() {
  const stats = chat.messages.findLast((message) => message.stats)?.stats;
  const window = served?.contextTokens;
  $("meter").hidden = !(stats && window);
  if (!stats || !window) return;
  const used = stats.promptTokens + stats.tokenCount;
  $("meter-bar").value = used / window;
  $("meter-text").textContent = `${used.toLocaleString()} of ${window.toLocaleString()}`;
}

async function pollModel() {
  let wait = 2000;
  try {
    served = await askModels();
    $("model-name").textContent = served.name;
    $("model-name").title = `${served.loaded ?? ""} ${served.architecture ?? ""} on ${served.loadedBackend ?? "…"}`.trim();
    $("model-state").textContent = served.ready ? "" : "loading …";
    composer.vision = served.visionReady;
    panel.defaults(served);
    updateMeter();
    if (served.ready) wait = 30_000;
  } catch (error) {
    $("model-state").textContent = error.status === 401 ? "needs a key" : "not reachable";
  }
  setTimeout(pollModel, wait);
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  $("theme").textContent = `Theme: ${theme ?? "as the system"}`;
  local.set("theme", theme);
}

function showPanel(visible) {
  $("panel").hidden = !visible;
  $("settings").setAttribute("aria-expanded", String(visible));
}

function openMenu() {
  document.body.classList.add("menu-open");
  $("shade").hidden = false;
  $("menu").setAttribute("aria-expanded", "true");
}

function closeMenu() {
  document.body.classList.remove("menu-open");
  $("shade").hidden = true;
  $("menu").setAttribute("aria-expanded", "false");
}

function startNewChat() {
  show(newChat());
  closeMenu();
}

async function askKey() {
  const dialog = $("key-dialog");
  $("key-input").value = "";
  if (!dialog.open) dialog.showModal();
  await new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
  const key = $("key-input").value.trim();
  return dialog.returnValue === "ok" && key ? { key, keep: $("key-keep").checked } : null;
}

function onKey(event) {
  const control = event.ctrlKey || event.metaKey;
  if (event.key === "Escape") {
    if (document.body.classList.contains("menu-open")) closeMenu();
    else if (runs.has(chat.id)) runs.get(chat.id).stop();
    else if (!$("panel").hidden) showPanel(false);
  } else if (control && event.shiftKey && event.key.toLowerCase() === "o") {
    event.preventDefault();
    startNewChat();
  } else if (control && event.key === ",") {
    event.preventDefault();
    showPanel($("panel").hidden);
  } else if (control && event.key === "/") {
    event.preventDefault();
    $("help-dialog").showModal();
  }
}

$("new-chat").addEventListener("click", startNewChat);
$("menu").addEventListener("click", () => (document.body.classList.contains("menu-open") ? closeMenu() : openMenu()));
$("shade").addEventListener("click", closeMenu);
$("settings").addEventListener("click", () => showPanel($("panel").hidden));
$("help").addEventListener("click", () => $("help-dialog").showModal());
$("to-end").addEventListener("click", toEnd);
$("messages").addEventListener("scroll", () => ($("to-end").hidden = nearEnd()));
$("system").addEventListener("change", () => {
  chat.system = $("system").value.trim();
  if (chat.messages.length) save(chat);
});
$("export").addEventListener("change", () => {
  if ($("export").value) exportChat(chat, $("export").value);
  $("export").value = "";
});
$("theme").addEventListener("click", () => {
  const next = { undefined: "light", light: "dark", dark: null };
  setTheme(next[document.documentElement.dataset.theme]);
});
$("key").addEventListener("click", async () => {
  const given = await askKey();
  if (given) setKey(given.key, given.keep);
});
window.addEventListener("keydown", onKey);
window.addEventListener("pagehide", endSession);
onMissingKey(askKey);
setTheme(local.get("theme"));
pollModel();
open(sessionStorage.getItem("jaxfold.chat") ?? "");
