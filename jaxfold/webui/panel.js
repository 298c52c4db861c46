// Settings: sampling, the system prompt, tools. A field that is left empty is the server's to decide.

import { $, el } from "./dom.js";
import { local } from "./store.js";

// name in the request, label, step, low, high, name among the server's defaults
const FIELDS = [
  ["temperature", "Temperature", 0.05, 0, 5, "temperature"],
  ["topP", "Top p", 0.01, 0.01, 1, "top_p"],
  ["topK", "Top k", 1, 0, 100000, "top_k"],
  ["minP", "Min p", 0.01, 0, 1, "min_p"],
  ["repeatPenalty", "Repeat penalty", 0.05, 0.05, 5, "repeat_penalty"],
  ["repeatLastN", "Repeat window", 1, -1, 100000, "repeat_last_n"],
  ["presencePenalty", "Presence penalty", 0.1, -2, 2, null],
  ["frequencyPenalty", "Frequency penalty", 0.1, -2, 2, null],
  ["maxTokens", "Longest reply, in tokens", 1, 1, 10000000, null],
  ["seed", "Seed", 1, 0, 9007199254740991, null],
];

export class Panel {
  constructor() {
    this.inputs = new Map();
    const saved = local.get("sampling") ?? {};
    for (const [name, label, step, min, max] of FIELDS) {
      const input = el("input", {
        type: "number", id: `s-${name}`, step: step === 1 ? 1 : "any", min, max,
        value: saved[name] ?? "", oninput: () => this.save(),
      });
      this.inputs.set(name, input);
      $("sampling").append(el("label", { for: input.id, textContent: label }), input);
    }
    $("reset").addEventListener("click", () => {
      for (const input of this.inputs.values()) input.value = "";
      this.save();
    });
    $("tools").value = local.get("tools") ?? "";
    $("tools").addEventListener("input", () => {
      local.set("tools", $("tools").value);
      this.tools();
    });
    $("think").checked = local.get("think") ?? true;
    $("think").addEventListener("change", () => local.set("think", $("think").checked));
  }

  /** Shows the server's own values where nothing is set. */
  defaults(models) {
    for (const [name, , , , , key] of FIELDS) {
      const value = name === "maxTokens" ? models.defaultMaxTokens : key ? models.sampling?.[key] : name === "seed" ? "from the prompt" : 0;
      this.inputs.get(name).placeholder = value ?? "";
    }
    $("think-row").hidden = !models.thinking;
  }

  save() {
    local.set("sampling", this.sampling());
  }

  /** The fields that are set and valid. */
  sampling() {
    const set = [...this.inputs].filter(([, input]) => input.value !== "" && input.validity.valid);
    return Object.fromEntries(set.map(([name, input]) => [name, input.valueAsNumber]));
  }

  /** The tools; null while what is written is not a list. */
  tools() {
    const text = $("tools").value.trim();
    let tools = [];
    let error = "";
    try {
      tools = text ? JSON.parse(text) : [];
      if (!Array.isArray(tools)) error = "Tools must be a list.";
    } catch (problem) {
      error = `Not JSON: ${problem.message}`;
    }
    $("tools-error").textContent = error;
    $("tools-error").hidden = !error;
    return error ? null : tools;
  }

  thinks() {
    return !$("think-row").hidden && $("think").checked;
  }
}
