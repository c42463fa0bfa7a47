// Search over everything that the page knows: `/` focuses it, arrow keys select, Enter opens.

import { h, replace } from "./dom.js";
import { path } from "./links.js";
import { allCards, allNodes, cardPath, compareNames } from "./model.js";
import { matches } from "./filters.js";
import { store } from "./store.js";

const FOUND_MAX = 12;

export function search() {
  const input = h("input", {
    type: "search", id: "search-input", placeholder: "Search", "aria-label": "Search; press / to focus", autocomplete: "off", spellcheck: "false",
    role: "combobox", "aria-expanded": "false", "aria-controls": "search-results", "aria-autocomplete": "list",
  });
  const list = h("ul", { id: "search-results", role: "listbox", "aria-label": "Results", hidden: true });
  let found = [], active = 0;

  function show() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    found = words.length ? find(words) : [];
    active = 0;
    draw();
  }

  function draw() {
    list.hidden = !input.value;
    input.setAttribute("aria-expanded", String(!list.hidden));
    input.setAttribute("aria-activedescendant", found.length ? `found-${active}` : "");
    replace(list, found.length ? found.map((item, index) => h("li", {
      id: `found-${index}`, role: "option", "aria-selected": String(index === active), onmousedown: (event) => { event.preventDefault(); open(index); },
    }, h("span", { class: "kind" }, item.kind), item.name)) : h("li", { class: "soft", role: "option", "aria-selected": "false", "aria-disabled": "true" }, "Nothing found"));
  }

  function open(index) {
    if (!found[index]) return;
    location.hash = path(...found[index].path);
    close();
  }

  function close() {
    input.value = "";
    show();
    input.blur();
  }

  input.addEventListener("input", show);
  input.addEventListener("blur", () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); });
  input.addEventListener("focus", () => { if (input.value) show(); });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    if (event.key === "Enter") return open(active);
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step || !found.length) return undefined;
    event.preventDefault();
    active = (active + step + found.length) % found.length;
    return draw();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    event.preventDefault();
    input.focus();
  });
  return [input, list];
}

function find(words) {
  const found = [];
  const add = (kind, name, parts, text = name) => {
    // Enough of one kind: the others would not be seen.
    if (matches(words, text) && found.filter((item) => item.kind === kind).length < FOUND_MAX / 2) found.push({ kind, name, path: parts });
  };
  for (const node of allNodes()) add("Node", node.name, ["node", node.name]);
  for (const pod of store.table("pods").values()) add("Pod", pod.key, ["pod", pod.namespace, pod.name]);
  for (const claim of store.table("claims").values()) add("Claim", `${claim.namespace}/${claim.name}`, ["claim", claim.namespace, claim.name]);
  for (const row of store.table("namespaces").values()) add("Namespace", row.name, ["namespaces"]);
  for (const row of store.table("classes").values()) add("Class", row.name, ["nodes"]);
  for (const card of allCards()) if (!card.plugin) add("Device", `${card.node} ${card.name}`, cardPath(card), `${card.node} ${card.name} ${card.model} ${card.key}`);
  const exact = (item) => (item.name === words[0] || item.name.endsWith(`/${words[0]}`) ? 0 : 1);
  return found.sort((a, b) => exact(a) - exact(b) || compareNames(a.kind, b.kind)).slice(0, FOUND_MAX);
}
