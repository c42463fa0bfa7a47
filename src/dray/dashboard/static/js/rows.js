// A table of any length: only the rows in sight are in the document. One tab stop; arrow keys move between rows.

import { h, keyed, replace } from "./dom.js";
import { number } from "./format.js";

const ROW_HEIGHT = 34;
const OVERSCAN = 6;

// columns: [{title, cell(row), wide, grow, middle}]; the first cell of a row holds its link.
export class Rows {
  constructor(label, columns, empty = "None found.") {
    this.columns = columns;
    this.empty = empty;
    this.rows = [];
    this.active = 0;
    this.body = h("tbody", {});
    this.before = h("div", {});
    this.after = h("div", {});
    this.table = h("table", { class: "rows", "aria-label": label },
      h("colgroup", {}, columns.map((column) => h("col", { class: columnClass(column) }))),
      h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col", class: columnClass(column) }, column.title)))), this.body);
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

  update(rows, total = rows.length, noun = "row") {
    this.rows = rows;
    this.active = Math.min(this.active, Math.max(rows.length - 1, 0));
    this.table.setAttribute("aria-rowcount", String(rows.length + 1));
    const text = rows.length === total ? `${number(total)} ${noun}${total === 1 ? "" : "s"}` : `${number(rows.length)} of ${number(total)} ${noun}s`;
    if (this.note.textContent !== text) this.note.textContent = text;
    this._draw();
  }

  _draw() {
    const first = Math.max(0, Math.floor(this.viewport.scrollTop / ROW_HEIGHT) - OVERSCAN);
    const count = Math.ceil((this.viewport.clientHeight || 600) / ROW_HEIGHT) + 2 * OVERSCAN;
    const shown = this.rows.slice(first, first + count);
    this.before.style.height = `${first * ROW_HEIGHT}px`;
    this.after.style.height = `${Math.max(0, this.rows.length - first - shown.length) * ROW_HEIGHT}px`;
    if (!this.rows.length) {
      this.body.keyedChildren = null;
      replace(this.body, h("tr", {}, h("td", { colspan: String(this.columns.length), class: "soft" }, this.empty)));
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
    const cells = this.columns.map((column) => h("td", { class: columnClass(column) }, column.cell(row)));
    for (const [place, link] of cells.flatMap((cell) => [...cell.querySelectorAll("a")]).entries()) {
      link.tabIndex = place === 0 && index === this.active ? 0 : -1;
      if (place === 0) link.dataset.key = row.key;
    }
    return h("tr", { "aria-rowindex": String(index + 2), class: row.class }, cells);
  }

  _onKey(event) {
    const page = Math.floor(this.viewport.clientHeight / ROW_HEIGHT) - 2;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves) || !event.target.matches("a")) return;
    event.preventDefault();
    this.active = Math.min(Math.max(this.active + moves[event.key], 0), this.rows.length - 1);
    const top = this.active * ROW_HEIGHT;
    if (top < this.viewport.scrollTop) this.viewport.scrollTop = top;
    else if (top + 3 * ROW_HEIGHT > this.viewport.scrollTop + this.viewport.clientHeight) this.viewport.scrollTop = top + 3 * ROW_HEIGHT - this.viewport.clientHeight;
    this._draw();
    this.body.querySelector(`[data-key="${CSS.escape(this.rows[this.active].key)}"]`)?.focus();
  }
}

function columnClass(column) {
  return [column.wide ? "wide" : "", column.grow ? "grow" : "", column.middle ? "middle" : "", column.number ? "number" : ""].filter(Boolean).join(" ") || null;
}
