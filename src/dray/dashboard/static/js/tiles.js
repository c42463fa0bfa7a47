// Physical devices as tiles: what is used fills them from the left, one segment for each allocated partition.

import { h } from "./dom.js";
import { path } from "./links.js";
import { cardPath, cardText, PROBLEMS, STATES, stateText, SYMBOLS } from "./model.js";

export function tile(card, first = false) {
  const text = cardText(card);
  return h("a", {
    class: `dev ${card.state}`, href: path(...cardPath(card)), "aria-label": text, title: card.note ? `${text}\n${card.note}` : text,
    "data-key": card.key, tabindex: first ? "0" : "-1",
  }, segments(card), SYMBOLS[card.state] ? h("b", { "aria-hidden": "true" }, SYMBOLS[card.state]) : null);
}

function segments(card) {
  if (card.segments.length > 1) return card.segments.map(([, share]) => h("i", { style: { width: `${share * 100}%` } }));
  return card.used ? h("i", { style: { width: `${card.used * 100}%` } }) : null;
}

export function signature(card) {
  return `${card.key}|${card.state}|${card.used}|${card.segments.map((item) => item.join()).join(";")}|${card.note}`;
}

// With `nodes`, also the frames of nodes in a heat map.
export function legend(nodes = false) {
  const states = Object.keys(STATES).filter((state) => state !== "loading").reverse();
  return h("ul", { class: "legend", "aria-label": "Legend" }, states.map((state) => h("li", { title: STATES[state] },
    h("span", { class: `dev ${state}`, "aria-hidden": "true" }, state === "used" ? h("i", { style: { width: "100%" } }) : state === "partly" ? h("i", { style: { width: "50%" } }) : null,
      PROBLEMS.has(state) ? h("b", {}, SYMBOLS[state]) : null), stateText(state))), nodes ? nodeFrames() : null);
}

// Of a heat map of nodes, which are the darker the more of their devices are in use.
export function nodeLegend() {
  return h("ul", { class: "legend", "aria-label": "Legend" }, h("li", {}, "0\u00a0%", h("span", { class: "ramp", "aria-hidden": "true" }), "100\u00a0% in use"),
    h("li", {}, h("span", { class: "dev tainted", "aria-hidden": "true" }, h("b", {}, "╱")), "device out of service"), nodeFrames());
}

function nodeFrames() {
  return [["cordoned", "node cordoned"], ["not", "node not ready"]].map(([state, text]) => h("li", {}, h("span", { class: `frame ${state}`, "aria-hidden": "true" }), text));
}

// Arrow keys move between the tiles of a map, which is a single tab stop.
export function moveFocus(event) {
  const tiles = [...event.currentTarget.querySelectorAll("a.dev")];
  const index = tiles.indexOf(document.activeElement);
  if (index < 0) return;
  let next = null;
  if (event.key === "ArrowRight") next = tiles[index + 1];
  else if (event.key === "ArrowLeft") next = tiles[index - 1];
  else if (event.key === "Home") [next] = tiles;
  else if (event.key === "End") next = tiles.at(-1);
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") next = vertical(tiles, index, event.key === "ArrowDown" ? 1 : -1);
  if (!next) return;
  event.preventDefault();
  tiles[index].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

// The nearest tile of the next row above or below.
function vertical(tiles, index, direction) {
  const from = tiles[index].getBoundingClientRect();
  let found = null, least = Infinity;
  for (const candidate of tiles) {
    const to = candidate.getBoundingClientRect();
    if (Math.sign(to.top - from.top) !== direction) continue;
    const distance = Math.abs(to.top - from.top) * 1000 + Math.abs(to.left - from.left);
    if (distance < least) [found, least] = [candidate, distance];
  }
  return found;
}
