// A table of any length: only the rows in sight are in the document. One tab stop; arrow keys move between rows.

import { h, keyed, replace } from "./dom.js";
import { number, plural } from "./format.js";

const ROW_HEIGHT = 34;
const STACKED_HEIGHT = 58;
const OVERSCAN = 6;
const PHONE = matchMedia("(max-width: 640px)");

// columns: [{title, cell(row), wide, grow, middle, short, detail}]; the first cell of a row holds its link. On a phone,
// columns that are `wide` are left out. If one is a `detail`, a row has two lines: the link, and below it the others.
export class Rows {
  constructor(label, columns, empty = "None found.") {
    this.columns = columns;
    this.isStacked = columns.some((column) => column.detail);
    this.empty = empty;
    this.rows = [];
    this.active = 0;
    this.body = h("tbody", { role: "rowgroup" });
    this.before = h("div", {});
    this.after = h("div", {});
    // With roles: they would be lost where rows are not laid out as a table.
    this.table = h("table", { class: this.isStacked ? "rows stacked" : "rows", role: "table", "aria-label": label },
      h("colgroup", {}, columns.map((column) => h("col", { class: columnClass(column) }))),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((column) => h("th", { scope: "col", role: "columnheader", class: columnClass(column) }, column.title)))), this.body);
    this.viewport = h("div", { class: "viewport", role: "region", "aria-label": `${label}, scrollable`, tabindex: "-1" }, this.before, this.table, this.after);
    this.note = h("p", { class: "soft count", role: "status" });
    this.element = h("div", { class: "card list" }, this.viewport);
    this.viewport.addEventListener("scroll", () => this._draw(), { passive: true });
    this.viewport.addEventListener("keydown", (event) => this._onKey(event));
    this.resize = new ResizeObserver(() => this._draw());
    this.resize.observe(this.viewport);
  }

  close() {
    this.resize.disconnect();
  }

  get rowHeight() {
    return this.isStacked && PHONE.matches ? STACKED_HEIGHT : ROW_HEIGHT;
  }

  update(rows, total = rows.length, noun = "row", nouns = `${noun}s`) {
    this.rows = rows;
    this.active = Math.min(this.active, Math.max(rows.length - 1, 0));
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    const text = rows.length === total ? plural(total, noun, nouns) : `${number(rows.length)} of ${number(total)} ${nouns}`;
    if (this.note.textContent !== text) this.note.textContent = text;
    this._draw();
  }

  _draw() {
    const height = this.rowHeight;
    const first = Math.max(0, Math.floor(this.viewport.scrollTop / height) - OVERSCAN);
    const count = Math.ceil((this.viewport.clientHeight || 600) / height) + 2 * OVERSCAN;
    const shown = this.rows.slice(first, first + count);
    this.before.style.height = `${first * height}px`;
    this.after.style.height = `${Math.max(0, this.rows.length - first - shown.length) * height}px`;
    if (!this.rows.length) {
      this.body.keyedChildren = null;
      replace(this.body, h("tr", { role: "row" }, h("td", { role: "cell", colspan: String(this.columns.length), class: "soft" }, this.empty)));
      this.wasEmpty = true;
      return;
    }
    if (this.wasEmpty) replace(this.body);
    this.wasEmpty = false;
    keyed(this.body, shown.map((row, index) => ({ key: row.key, row, index: first + index, signature: this._signature(row, first + index) })),
      (item) => this._row(item.row, item.index));
  }

  // Rows are replaced by new objects when they change.
  _signature(row, index) {
    this.numbers ??= new WeakMap();
    this.next ??= 1;
    if (!this.numbers.has(row)) this.numbers.set(row, this.next++);
    return `${this.numbers.get(row)}/${index}/${index === this.active}`;
  }

  _row(row, index) {
    const cells = this.columns.map((column) => h("td", { role: "cell", class: columnClass(column) }, column.cell(row)));
    for (const [place, link] of cells.flatMap((cell) => [...cell.querySelectorAll("a")]).entries()) {
      link.tabIndex = place === 0 && index === this.active ? 0 : -1;
      if (place === 0) link.dataset.key = row.key;
    }
    return h("tr", { role: "row", "aria-rowindex": String(index + 2), class: row.class }, cells);
  }

  _onKey(event) {
    const height = this.rowHeight;
    const page = Math.floor(this.viewport.clientHeight / height) - 2;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !event.target.matches("a")) return;
    event.preventDefault();
    this.active = Math.min(Math.max(this.active + moves[event.key], 0), this.rows.length - 1);
    const top = this.active * height;
    if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
    else if (top + 3 * height > this.viewport.scrollTop + this.viewport.clientHeight) this.viewport.scrollTop = top + 3 * height - this.viewport.clientHeight;
    this._draw();
    this.body.querySelector(`[data-key="${CSS.escape(this.rows[this.active].key)}"]`)?.focus();
  }
}

function columnClass(column) {
  return ["wide", "grow", "middle", "number", "short", "detail"].filter((name) => column[name]).join(" ") || null;
}
