// Search over everything that the page knows: `/` focuses it, arrow keys select, Enter opens.

import { h, replace } from "./dom.js";
import { number } from "./format.js";
import { path } from "./links.js";
import { allCards, allNodes, cardPath } from "./model.js";
import { store } from "./store.js";

// Lines of results, and how many of each kind are shown in any case.
const FOUND_MAX = 12;
const OF_A_KIND_MIN = 3;

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
    if (!found[index]?.href) return;
    location.hash = found[index].href;
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

// What is searched: in this order, each kind with the list that shows all that is found, if there is one.
const KINDS = [
  { kind: "Node", tables: ["nodes", "pools"], list: "nodes", items: () => allNodes().map((node) => [node.name, ["node", node.name]]) },
  { kind: "Namespace", tables: ["namespaces"], list: "namespaces", items: () => store.rows("namespaces").map((row) => [row.name, ["namespaces"]]) },
  { kind: "Pod", tables: ["pods"], list: "pods", items: () => store.rows("pods").map((pod) => [pod.key, ["pod", pod.namespace, pod.name]]) },
  { kind: "Claim", tables: ["claims"], list: "claims", items: () => store.rows("claims").map((claim) => [`${claim.namespace}/${claim.name}`, ["claim", claim.namespace, claim.name]]) },
  { kind: "Class", tables: ["classes"], items: () => store.rows("classes").map((row) => [row.name, ["nodes"]]) },
  { kind: "Device", tables: ["nodes", "pools"], items: () => allCards().filter((card) => !card.plugin).map((card) => [`${card.node} ${card.name}`, cardPath(card), `${card.node} ${card.name} ${card.model} ${card.key}`]) },
];

function find(words) {
  const rank = (name) => {
    const last = name.slice(name.lastIndexOf("/") + 1);
    return last === words[0] || name === words[0] ? 0 : last.startsWith(words[0]) ? 1 : 2;
  };
  const groups = KINDS.map(({ kind, list, tables, items }) => {
    // Lower-cased once, and not for every key that is typed.
    const all = store.memo(`search ${kind}`, tables, () => items().map(([name, parts, text]) => ({ name, parts, text: (text ?? name).toLowerCase() })));
    const found = all.filter(({ text }) => words.every((word) => text.includes(word))).map(({ name, parts }) => ({ kind, name, href: path(...parts), rank: rank(name) }));
    return { kind, list, found: found.sort((a, b) => a.rank - b.rank) };
  }).filter((group) => group.found.length);
  const each = Math.max(OF_A_KIND_MIN, Math.floor(FOUND_MAX / Math.max(groups.length, 1)));
  const lines = groups.flatMap(({ kind, list, found }) => {
    const more = found.length - each;
    const rest = more > 0 ? [{ kind, name: `${number(more)} more${list ? ": show all" : ""}`, href: list ? `#/${list}?q=${encodeURIComponent(words.join(" "))}` : "", rank: 3 }] : [];
    return [...found.slice(0, each), ...rest];
  });
  // What is named exactly so comes first, whatever it is.
  return [...lines.filter((line) => line.rank === 0), ...lines.filter((line) => line.rank > 0)];
}
