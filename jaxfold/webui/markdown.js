// Markdown to elements. What a model writes is hostile until DOMPurify has read it; the page's policy lets nothing else in.

import { Marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import hljs from "./vendor/highlight.js";
import { copyButton, el } from "./dom.js";

const escape = (text) => text.replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

const MAX_HIGHLIGHT = 50_000;

const renderer = {
  code({ text, lang }) {
    const name = (lang ?? "").trim().split(/\s+/)[0];
    const known = text.length < MAX_HIGHLIGHT && name && hljs.getLanguage(name);
    const body = known ? hljs.highlight(text, { language: name, ignoreIllegals: true }).value : escape(text);
    return `<pre><code class="hljs" title="${escape(name)}">${body}</code></pre>`;
  },
  // A picture from elsewhere would tell its server that, and what, somebody reads: it is shown as a link.
  image({ href, text }) {
    return `<a href="${escape(href)}">${escape(text || href)}</a>`;
  },
  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  },
};
const marked = new Marked({ gfm: true, breaks: true, renderer });

const RULES = {
  USE_PROFILES: { html: true },
  FORBID_TAGS: ["style", "img", "form", "input", "button", "textarea", "select", "audio", "video", "picture", "source", "dialog", "map", "area", "template", "slot"],
  FORBID_ATTR: ["style", "id", "name", "srcset", "src", "background", "tabindex", "accesskey", "autofocus", "contenteditable", "draggable"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  // Only what the page's own style sheet means may stay: a reply must not dress up as the page.
  const names = [...(node.classList ?? [])].filter((name) => name.startsWith("hljs"));
  if (names.length) node.setAttribute("class", names.join(" "));
  else node.removeAttribute?.("class");
});

/** Keeps an element equal to a growing text; blocks that did not change are left alone. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.blocks = [];
  }

  update(text) {
    const tokens = marked.lexer(text);
    let same = 0;
    while (same < tokens.length && this.blocks[same]?.raw === tokens[same].raw) same++;
    for (const block of this.blocks.splice(same)) block.nodes.forEach((node) => node.remove());
    for (const token of tokens.slice(same)) {
      const one = Object.assign([token], { links: tokens.links });
      const nodes = [...DOMPurify.sanitize(marked.parser(one), RULES).childNodes];
      nodes.forEach(decorate);
      this.element.append(...nodes);
      this.blocks.push({ raw: token.raw, nodes });
    }
  }
}

/** Gives code blocks their language and a button to copy them. */
function decorate(node) {
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const blocks = node.matches("pre") ? [node] : [...node.querySelectorAll("pre")];
  for (const pre of blocks) {
    const code = pre.querySelector("code");
    if (!code) continue;
    const language = code.title;
    code.removeAttribute("title");
    pre.prepend(el("div", { className: "code-head" }, el("span", { textContent: language }), copyButton(() => code.textContent)));
  }
}
