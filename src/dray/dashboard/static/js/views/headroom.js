// How many more Pods of each typical kind fit, and how many would if all Pods were packed ideally.

import { query } from "../api.js";
import { h, replace, since } from "../dom.js";
import { number, plural } from "../format.js";
import { store } from "../store.js";

// Counting takes milliseconds for each node, and a process: in larger clusters it is done when the user asks for it.
const NODES_MAX = 60;
// Not for those who only pass by.
const DELAY_MILLISECONDS = 1500;

// Kept while other pages are open.
let counted = null;

export function headroom() {
  const result = h("div", { role: "status" });
  const button = h("button", { type: "button", onclick: () => count() }, "Count");
  const element = h("div", { class: "headroom" }, result, button);
  const left = new AbortController();
  let isRunning = false, timer = null;

  async function count() {
    isRunning = true;
    button.disabled = true;
    replace(result, h("p", { class: "soft" }, "Counting…"));
    try {
      counted = { kinds: await query("fragmentation", {}, left.signal), at: new Date().toISOString() };
      show();
    } catch (failure) {
      replace(result, h("p", { class: "error" }, failure.message));
    }
    isRunning = false;
    button.disabled = false;
  }

  function show() {
    button.textContent = "Count again";
    replace(result, counted.kinds.length ? counted.kinds.map(kindLine) : h("p", { class: "soft" }, "No Pod requests devices yet."), h("p", { class: "soft" }, "Counted ", since(counted.at), " ago."));
  }

  element.refresh = (nodes) => {
    if (counted || isRunning || !store.loaded) return;
    if (nodes <= NODES_MAX) timer ??= setTimeout(count, DELAY_MILLISECONDS);
    else if (!result.hasChildNodes()) replace(result, h("p", { class: "soft" }, `How many more Pods of each typical kind fit, and how many if they were packed ideally. With ${number(nodes)} nodes this takes a while.`));
  };
  element.close = () => {
    clearTimeout(timer);
    left.abort();
  };
  if (counted) show();
  return element;
}

function kindLine({ requests, example, fit, atMost }) {
  const stranded = atMost - fit;
  const text = stranded ? `${number(fit)} of ${number(atMost)}, if packed ideally, fit now` : `${plural(fit, "more Pod")} fit`;
  return h("div", { class: "headroom-line" }, h("b", {}, requests), h("span", { class: "soft" }, `as ${example}`),
    h("span", { class: "gauge", role: "img", "aria-label": text }, h("i", { style: { width: `${atMost ? (fit / atMost) * 100 : 0}%` } })),
    h("span", {}, text));
}
