// Thousands of nodes with their devices in one picture, drawn on a canvas: a block for each node, a cell for each device.
// One tab stop: arrow keys move between nodes, and the text below describes what is selected.

import { h } from "./dom.js";
import { plural } from "./format.js";
import { path } from "./links.js";
import { cardText, compareNames, PROBLEMS, summaryText } from "./model.js";

const HEIGHT_WANTED = 600;
const CELL_MAX = { devices: 16, nodes: 28 };
const CELL_MIN = 3;
const CELL_MIN_IN_GROUPS = 6;
const GROUPS_MANY = 20;
const TITLE_HEIGHT = 24;
const COLUMNS_MAX = 4;
const GROUP_WIDTH_MIN = 96;
const GROUP_MARGIN = 20;
// Narrower groups have a number without a noun.
const TITLE_WIDTH_MIN = 160;

// `cells` is "devices" or "nodes"; groupOf(node) returns the title of a node's group.
export class Heatmap {
  constructor({ cells = "devices", label }) {
    this.cells = cells;
    this.label = label;
    this.cursor = "";
    this.canvas = h("canvas", { class: "heat", tabindex: "0", role: "img", "aria-label": label });
    this.text = h("p", { class: "heat-text soft", role: "status" });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("div", { class: "heat-box" }, this.canvas, this.tip, this.text);
    this.canvas.addEventListener("mousemove", (event) => this._onMove(event));
    this.canvas.addEventListener("mouseleave", () => { this.tip.hidden = true; });
    this.canvas.addEventListener("click", (event) => this._open(this._at(event)));
    this.canvas.addEventListener("keydown", (event) => this._onKey(event));
    this.canvas.addEventListener("focus", () => this._select(this.cursor || this.nodes?.[0]?.name));
    this.canvas.addEventListener("blur", () => this._draw());
    this.resize = new ResizeObserver(() => this._layoutAndDraw());
    this.resize.observe(this.element);
    // The colours are the theme's.
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._layoutAndDraw());
  }

  close() {
    this.resize.disconnect();
  }

  update(nodes, groupOf) {
    const places = nodes.map((node) => `${node.name}\n${this.cells === "nodes" ? 1 : node.cards.length}\n${groupOf(node)}`);
    const isSame = this.places && this.width === this.element.clientWidth && places.length === this.places.length && places.every((place, index) => place === this.places[index]);
    this.nodes = nodes;
    this.groupOf = groupOf;
    this.places = places;
    if (isSame) this._drawChanged();
    else this._layoutAndDraw();
  }

  _layoutAndDraw() {
    const width = this.element.clientWidth;
    if (!this.nodes || !width) return;
    this.width = width;
    const groups = new Map();
    for (const node of this.nodes) {
      const title = this.groupOf(node);
      if (!groups.has(title)) groups.set(title, []);
      groups.get(title).push(node);
    }
    this.groups = [...groups].sort(([a], [b]) => compareNames(a, b));
    let cell = CELL_MAX[this.cells];
    // The height of many groups is that of their titles: smaller cells would not help.
    const least = this.groups.length > GROUPS_MANY ? CELL_MIN_IN_GROUPS : CELL_MIN;
    while (cell > least && this._place(width, cell) > HEIGHT_WANTED) cell--;
    const height = this._place(width, cell);
    this.blockOf = new Map(this.blocks.map((block) => [block.node.name, block]));
    this.cell = cell;
    const ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }
    this._draw();
  }

  // Nodes are new objects if they have changed.
  _drawChanged() {
    if (!this.blocks) return;
    const context = this.canvas.getContext("2d");
    let isSelected = false;
    for (const node of this.nodes) {
      const block = this.blockOf.get(node.name);
      if (block.node === node) continue;
      block.node = node;
      isSelected ||= node.name === this.cursor;
      context.clearRect(block.x - 1, block.y - 1, block.width + 2, block.height + 2);
      this._drawBlock(context, block, this.palette);
    }
    if (isSelected) this._select(this.cursor);
  }

  // Places all blocks for a cell size; returns the height. Small groups share a row.
  _place(width, cell) {
    const gap = cell > 6 ? 2 : 1;
    const margin = cell > 6 ? 6 : 3;
    this.titles = [];
    this.blocks = [];
    const hasTitles = this.groups.length > 1 || Boolean(this.groups[0]?.[0]);
    let left = 0, top = 0, rowHeight = 0;
    for (const [title, nodes] of this.groups) {
      const wanted = this._groupWidth(width, nodes, cell + gap, margin);
      if (left > 0 && left + wanted > width) {
        left = 0;
        top += rowHeight;
        rowHeight = 0;
      }
      if (hasTitles) this.titles.push({ title, x: left, y: top, width: wanted, count: nodes.length });
      const height = this._placeNodes(nodes, { x: left, y: top + (hasTitles ? TITLE_HEIGHT : 0), width: wanted, cell, gap, margin });
      rowHeight = Math.max(rowHeight, (hasTitles ? TITLE_HEIGHT : 0) + height + margin * 2);
      left += wanted + GROUP_MARGIN;
    }
    return Math.max(top + rowHeight, 20);
  }

  // About twice as wide as high, with room for a title; groups that take more than half of a row get a whole one.
  _groupWidth(width, nodes, step, margin) {
    if (this.groups.length < 2) return width;
    const columns = this.cells === "nodes" ? 1 : Math.min(Math.max(nodes[0].cards.length, 1), COLUMNS_MAX);
    const wanted = Math.max(GROUP_WIDTH_MIN, Math.ceil(Math.sqrt(nodes.length * 2)) * (columns * step + margin));
    return wanted > width / 2 ? width : wanted;
  }

  // Places the blocks of a group; returns their height.
  _placeNodes(nodes, { x: left, y: top, width, cell, gap, margin }) {
    let x = 0, y = 0, rowHeight = 0;
    for (const node of nodes) {
      const count = this.cells === "nodes" ? 1 : Math.max(node.cards.length, 1);
      const columns = Math.min(count, COLUMNS_MAX), rows = Math.ceil(count / columns);
      const blockWidth = columns * (cell + gap) - gap, blockHeight = rows * (cell + gap) - gap;
      if (x + blockWidth > width && x > 0) {
        x = 0;
        y += rowHeight + margin;
        rowHeight = 0;
      }
      this.blocks.push({ node, x: left + x, y: top + y, width: blockWidth, height: blockHeight, columns, gap });
      x += blockWidth + margin;
      rowHeight = Math.max(rowHeight, blockHeight);
    }
    return y + rowHeight;
  }

  _draw() {
    if (!this.blocks) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const palette = this.palette = Object.fromEntries(["used", "free", "heat-free", "free-line", "tainted", "unhealthy", "unusable", "ink", "soft", "focus", "card"].map((name) => [name, colour(name)]));
    const context = this.canvas.getContext("2d");
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.textBaseline = "middle";
    for (const { title, x, y, width, count } of this.titles) {
      context.font = "600 13px system-ui, sans-serif";
      context.fillStyle = palette.ink;
      const counted = width < TITLE_WIDTH_MIN ? String(count) : plural(count, "node");
      const shown = Math.min(context.measureText(title || "none").width, width - 12 - counted.length * 8);
      context.fillText(title || "none", x, y + 11, shown);
      context.font = "12px system-ui, sans-serif";
      context.fillStyle = palette.soft;
      context.fillText(counted, x + shown + 8, y + 11);
    }
    for (const block of this.blocks) this._drawBlock(context, block, palette);
  }

  _drawBlock(context, block, palette) {
    const { node, x, y, columns, gap } = block;
    const step = this.cell + gap;
    const cells = this.cells === "nodes" ? [{ state: node.loading ? "loading" : node.state, used: node.share }] : node.cards;
    if (!cells.length) {
      context.strokeStyle = palette["free-line"];
      context.strokeRect(x + 0.5, y + 0.5, this.cell - 1, this.cell - 1);
    }
    cells.forEach((card, index) => this._drawCell(context, card, x + (index % columns) * step, y + Math.floor(index / columns) * step, palette));
    if (node.problem) {
      context.strokeStyle = node.problem === "not ready" ? palette.unhealthy : palette.tainted;
      context.lineWidth = 1;
      context.strokeRect(x - 0.5, y - 0.5, block.width + 1, block.height + 1);
    }
    if (node.name === this.cursor && document.activeElement === this.canvas) {
      context.strokeStyle = palette.focus;
      context.lineWidth = 2;
      context.strokeRect(x - 2, y - 2, block.width + 4, block.height + 4);
    }
  }

  // A used part fills the cell from below; a defect is a coloured frame with a cross, so that it needs no colour to be seen.
  _drawCell(context, card, x, y, palette) {
    const size = this.cell;
    context.fillStyle = this.cells === "nodes" ? mixed(palette["heat-free"], palette.used, card.used) : palette["heat-free"];
    // An empty frame until its state is known.
    if (card.state !== "loading") context.fillRect(x, y, size, size);
    const level = Math.round(size * Math.min(card.used, 1));
    if (this.cells === "devices" && card.used) {
      context.fillStyle = palette.used;
      context.fillRect(x, y + size - Math.max(level, 1), size, Math.max(level, 1));
    }
    if (PROBLEMS.has(card.state)) {
      context.strokeStyle = context.fillStyle = palette[card.state];
      context.lineWidth = size > 8 ? 2 : 1;
      const inset = context.lineWidth / 2;
      context.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
      context.beginPath();
      context.moveTo(x + inset, y + inset);
      context.lineTo(x + size - inset, y + size - inset);
      if (card.state !== "tainted") {
        context.moveTo(x + size - inset, y + inset);
        context.lineTo(x + inset, y + size - inset);
      }
      context.stroke();
    } else if ((size > 4 || card.state === "loading") && !card.used) {
      context.strokeStyle = palette["free-line"];
      context.lineWidth = 1;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
  }

  _at(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    const block = this.blocks.find((item) => x >= item.x - 1 && x <= item.x + item.width + 1 && y >= item.y - 1 && y <= item.y + item.height + 1);
    if (!block) return null;
    const step = this.cell + block.gap;
    const index = Math.floor((y - block.y) / step) * block.columns + Math.floor((x - block.x) / step);
    return { node: block.node, card: this.cells === "nodes" ? null : block.node.cards[index] };
  }

  _onMove(event) {
    const found = this._at(event);
    this.tip.hidden = !found;
    this.canvas.style.cursor = found ? "pointer" : "default";
    if (!found) return;
    this.tip.textContent = found.card ? `${found.node.name} · ${cardText(found.card)}` : describe(found.node);
    const box = this.element.getBoundingClientRect();
    this.tip.style.left = `${Math.min(event.clientX - box.left + 12, box.width - this.tip.offsetWidth)}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  _onKey(event) {
    const index = this.blocks.findIndex((block) => block.node.name === this.cursor);
    const moves = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: this.blocks.length - 1, ArrowDown: this._vertical(index, 1), ArrowUp: this._vertical(index, -1) };
    if (event.key === "Enter") return this._open({ node: this.blocks[Math.max(index, 0)]?.node });
    if (!(event.key in moves)) return undefined;
    event.preventDefault();
    const block = this.blocks[Math.min(Math.max(moves[event.key], 0), this.blocks.length - 1)];
    return this._select(block?.node.name);
  }

  _vertical(index, direction) {
    const from = this.blocks[Math.max(index, 0)];
    let found = index, least = Infinity;
    this.blocks.forEach((block, candidate) => {
      if (!from || Math.sign(block.y - from.y) !== direction) return;
      const distance = Math.abs(block.y - from.y) * 10000 + Math.abs(block.x - from.x);
      if (distance < least) [found, least] = [candidate, distance];
    });
    return found;
  }

  _select(name) {
    this.cursor = name ?? "";
    const node = this.nodes?.find((item) => item.name === name);
    this.text.textContent = node ? `${describe(node)} (Enter opens it)` : "";
    this._draw();
  }

  _open(found) {
    if (!found?.node) return;
    location.hash = path("node", found.node.name);
  }
}

// A colour between two of the form #rrggbb.
function mixed(from, to, share) {
  const [a, b] = [from, to].map((text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16)));
  return `rgb(${a.map((value, index) => Math.round(value + (b[index] - value) * Math.min(share, 1))).join()})`;
}

export function describe(node) {
  return [node.name, summaryText(node), node.problem].filter(Boolean).join(" · ");
}
