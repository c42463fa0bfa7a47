// Usage and quotas by namespace, and the page of one quota.

import { simulate } from "../actions.js";
import { bar, card, h, replace, replaceOn } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { number, shortResource } from "../format.js";
import { link } from "../links.js";
import { doubled, quantity, usageByNamespace, waiting } from "../model.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";
import { waitingLines } from "./overview.js";

const WIDTH = 160, HEIGHT = 22;

export const namespacesView = {
  title: "Namespaces",

  open(main) {
    this.filters = new Filters([], () => this.render());
    this.rows = new Rows("Namespaces", [
      { title: "Namespace", cell: (row) => h("a", { href: `#/pods?ns=${encodeURIComponent(row.name)}` }, row.name), grow: true },
      { title: "Devices", cell: (row) => number(row.devices), number: true },
      { title: "Since opened", cell: (row) => spark(store.samples.get(`ns/${row.name}`) ?? [], row.name), wide: true, middle: true },
      { title: "Device-hours", cell: (row) => row.hours.toFixed(1), number: true, wide: true },
      { title: "Claims", cell: (row) => number(row.claims), number: true },
      { title: "Pending", cell: (row) => number(row.pending), number: true, wide: true },
      { title: "Pods", cell: (row) => number(row.pods), number: true, wide: true },
      { title: "Waiting", cell: (row) => number(row.waiting), number: true },
    ]);
    this.quotas = new Rows("Quotas", [
      { title: "Quota", cell: (row) => link(["quota", row.namespace, row.name], `${row.namespace}/${row.name}`), grow: true },
      { title: "Resource", cell: (row) => h("span", { title: row.resource }, shortResource(row.resource)), grow: true },
      { title: "In use", cell: (row) => bar(row.share, `${row.resource}: ${row.used} of ${row.hard}`), wide: true },
      { title: "Used", cell: (row) => `${row.used} of ${row.hard}`, number: true },
    ], "No quotas.");
    replace(main, h("div", { class: "head" }, h("h1", {}, "Namespaces"), this.rows.note), this.filters.element,
      h("div", { class: "stack" }, this.rows.element, h("section", {}, h("div", { class: "head" }, h("h2", {}, "Quotas"), this.quotas.note), this.quotas.element)));
    this.render();
  },

  close() {
    this.rows.close();
    this.quotas.close();
  },

  render() {
    const words = this.filters.words;
    const all = usageByNamespace();
    this.rows.update(all.filter((row) => matches(words, row.name)), all.length, "namespace");
    const limits = store.memo("limits", ["quotas"], () => store.rows("quotas").flatMap(limitsOf));
    this.quotas.update(limits.filter((row) => matches(words, row.namespace)), limits.length, "limit");
  },
};

function limitsOf({ key, namespace, name, resources }) {
  return resources.map(([resource, used, hard]) => ({
    key: `${key}/${resource}`, namespace, name, resource, used, hard, share: quantity(hard) ? quantity(used) / quantity(hard) : 1,
  }));
}

export const quotaView = {
  title: "Quota",

  open(main, [namespace, name]) {
    this.key = `${namespace}/${name}`;
    this.head = h("h1", {}, this.key, " ", h("small", {}, "ResourceQuota"));
    this.limits = h("div", {});
    this.waiting = h("div", {});
    replace(main, this.head, h("div", { class: "columns" }, card("Limits", this.limits), card("Waiting in this namespace", this.waiting)));
    this.render();
  },

  render() {
    const row = store.get("quotas", this.key);
    if (!row) {
      replaceOn(this.limits, store.loaded, () => h("p", { class: "soft" }, store.loaded ? "Not found: the quota does not exist, or you cannot read it." : "Loading…"));
      return;
    }
    replaceOn(this.limits, row.resources, () => limitsOf(row).map(limitLine));
    const waits = waiting().filter((group) => group.namespace === row.namespace);
    replaceOn(this.waiting, [store.listed(["Pod"]), ...waits], () => waitingLines(waits));
  },
};

function limitLine(limit) {
  const { namespace, name, resource, used, hard, share } = limit;
  return h("div", { class: "class-line quota" }, h("span", { title: resource }, shortResource(resource)), bar(share, `${resource}: ${used} of ${hard}`), h("span", {}, `${used} of ${hard}`),
    h("button", { type: "button", onclick: () => simulate({
      text: "What if I raise it?", parameters: { change: "raise-quota", namespace, name, resource }, ask: { name: "limit", label: `Limit of ${shortResource(resource)}`, value: doubled(hard) },
    }) }, "What if I raise it?"));
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
