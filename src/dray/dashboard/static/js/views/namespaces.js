// Usage and quotas by namespace.

import { bar, card, h, replace, replaceOn } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { number } from "../format.js";
import { quantity, usageByNamespace } from "../model.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";

const WIDTH = 160, HEIGHT = 22;

export const namespacesView = {
  title: "Namespaces",

  open(main) {
    this.filters = new Filters([], () => this.render());
    this.rows = new Rows("Namespaces", [
      { title: "Namespace", cell: (row) => h("a", { href: `#/pods?ns=${encodeURIComponent(row.name)}` }, row.name), grow: true },
      { title: "Devices", cell: (row) => number(row.devices), number: true },
      { title: "Since this page was opened", cell: (row) => spark(store.samples.get(`ns/${row.name}`) ?? [], row.name), wide: true },
      { title: "Device-hours", cell: (row) => row.hours.toFixed(1), number: true, wide: true },
      { title: "Claims", cell: (row) => number(row.claims), number: true },
      { title: "Pending", cell: (row) => number(row.pending), number: true, wide: true },
      { title: "Pods", cell: (row) => number(row.pods), number: true, wide: true },
      { title: "Waiting", cell: (row) => number(row.waiting), number: true },
    ]);
    this.quotas = h("div", {});
    replace(main, h("div", { class: "head" }, h("h1", {}, "Namespaces"), this.rows.note), this.filters.element, h("div", { class: "stack" }, this.rows.element, card("Quotas", this.quotas)));
    this.render();
  },

  close() {
    this.rows.close();
  },

  render() {
    const words = this.filters.words;
    const all = usageByNamespace();
    this.rows.update(all.filter((row) => matches(words, row.name)), all.length, "namespace");
    const quotas = store.rows("quotas").filter((row) => matches(words, row.namespace)).flatMap((row) => row.resources.map(([resource, used, hard]) => ({ ...row, resource, used, hard })));
    replaceOn(this.quotas, quotas, () => (quotas.length ? quotas.map(quotaLine) : h("p", { class: "soft" }, "No quotas.")));
  },
};

function quotaLine({ namespace, name, resource, used, hard }) {
  const share = quantity(hard) ? quantity(used) / quantity(hard) : 1;
  return h("div", { class: "class-line quota" }, h("span", {}, `${namespace}/${name}`, h("span", { class: "soft" }, ` ${resource}`)), bar(share, `${resource}: ${used} of ${hard}`), h("span", {}, `${used} of ${hard}`));
}

// Called periodically, whichever view is open.
export function sampleUsage() {
  for (const row of usageByNamespace()) if (row.devices || store.samples.has(`ns/${row.name}`)) store.sample(`ns/${row.name}`, row.devices);
}

function spark(samples, name) {
  if (samples.length < 2) return "";
  const most = Math.max(...samples.map((sample) => sample.value), 1);
  const [first, last] = [samples[0].at, samples[samples.length - 1].at];
  const points = samples.map((sample) => `${((sample.at - first) / Math.max(last - first, 1)) * WIDTH},${HEIGHT - (sample.value / most) * (HEIGHT - 4) - 2}`).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [key, value] of Object.entries({ viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "spark", role: "img", "aria-label": `Devices of ${name}; most: ${most}, now: ${samples[samples.length - 1].value}` })) svg.setAttribute(key, value);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points);
  svg.append(line);
  return svg;
}
