// What happened, newest first: events, allocations and created Pods.

import { h, replace, since } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { oneLine } from "../format.js";
import { link, parameter, tag } from "../links.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";

const PAGES = { Pod: "pod", ResourceClaim: "claim" };

export const timelineView = {
  title: "Timeline",

  open(main) {
    this.filters = new Filters([{ name: "type", label: "Type" }, { name: "ns", label: "Namespace" }], () => this.render(), "Text");
    this.rows = new Rows("Timeline", [
      { title: "Object", cell: subject, middle: true },
      { title: "Type", cell: (row) => tag(row.type.toLowerCase()) },
      { title: "Reason", cell: (row) => h("span", { title: row.reason }, row.reason), wide: true, middle: true },
      { title: "Message", cell: (row) => h("span", { title: row.message }, oneLine(row.message)), detail: true, grow: true },
      { title: "Count", cell: (row) => (row.count > 1 ? `×${row.count}` : ""), wide: true, number: true },
      { title: "Age", cell: (row) => since(row.at), short: true },
    ], "Nothing happened.");
    replace(main, h("div", { class: "head" }, h("h1", {}, "Timeline"), this.rows.note), this.filters.element, this.rows.element);
    this.render();
  },

  close() {
    this.rows.close();
  },

  render() {
    const all = store.memo("timeline", ["events", "claims"], () => [
      ...store.rows("events"),
      ...store.rows("claims").filter((claim) => claim.allocated).map((claim) => ({
        key: `allocated/${claim.key}`, at: claim.allocated, type: "Allocation", reason: "Allocated", kind: "ResourceClaim", namespace: claim.namespace, name: claim.name, message: claim.devices.join(", "), count: 1,
      })),
    ].sort((a, b) => (a.at < b.at ? 1 : -1)));
    this.filters.options("type", ["Warning", "Normal", "Allocation"]);
    this.filters.options("ns", [...new Set(all.map((row) => row.namespace).filter(Boolean))].sort());
    const [type, namespace] = ["type", "ns"].map(parameter);
    const words = this.filters.words;
    this.rows.update(all.filter((row) => (!type || row.type === type) && (!namespace || row.namespace === namespace) && matches(words, `${row.kind} ${row.namespace}/${row.name} ${row.reason} ${row.message}`)), all.length, "entry", "entries");
  },
};

function subject(row) {
  const name = row.namespace ? `${row.namespace}/${row.name}` : row.name;
  if (row.kind === "Node") return link(["node", row.name], `Node ${name}`);
  const text = `${row.kind} ${name}`;
  return PAGES[row.kind] ? link([PAGES[row.kind], row.namespace, row.name], text) : link(["timeline"], text, { href: `#/timeline?q=${encodeURIComponent(name)}` });
}
