// One device: its properties, allocations and history.

import { facts, h, meter, replace, table } from "../dom.js";
import { claimLink, joined, podLink, tag } from "../links.js";
import { attributeText, STATES, taintText } from "../model.js";
import { store } from "../store.js";
import { age, moment } from "../format.js";
import { allDevices } from "./map.js";

export const deviceView = {
  title: "Device",

  open(main, [driver, pool, name]) {
    this.main = main;
    this.key = `${driver}/${pool}/${name}`;
    this.render();
  },

  render() {
    const device = allDevices().find((item) => item.key === this.key);
    if (!device) {
      replace(this.main, h("h1", {}, this.key), h("p", {}, "Not found: no driver publishes this device."), history(this.key));
      return;
    }
    replace(this.main,
      h("h1", {}, device.name, " ", tag(device.state)),
      h("p", { class: "soft" }, `${device.state}: ${STATES[device.state]}`),
      h("div", { class: "columns" },
        h("section", { class: "card" }, h("h2", {}, "Properties"), properties(device)),
        h("section", { class: "card" }, h("h2", {}, "Allocations"), allocations(device)),
        device.counters.size ? h("section", { class: "card" }, h("h2", {}, "Shared counters of the pool"), counters(device)) : null,
        history(this.key)));
  },
};

function properties(device) {
  const attributes = Object.entries(device.spec.attributes ?? {}).map(([name, value]) => [name, attributeText(value)]);
  const capacity = Object.entries(device.spec.capacity ?? {}).map(([name, value]) => [name, value.value]);
  return facts([
    ["Driver", device.driver], ["Pool", device.pool], ["Node", device.node || "any (network-attached)"], ["Slice", device.slice],
    ["Taints", device.taints.map(taintText).join(", ")],
    ["Multiple allocations", device.spec.allowMultipleAllocations ? "allowed" : ""],
    ...attributes, ...capacity,
  ]);
}

function allocations(device) {
  if (!device.holders.length) return h("p", {}, "None.");
  return table(["Claim", "Request", "Pods", "Age", "Consumed capacity"], device.holders.map((holder) => [
    claimLink(holder.namespace, holder.name), holder.admin ? `${holder.request} (admin access)` : holder.request,
    joined(holder.pods.map((pod) => podLink(holder.namespace, pod))), h("span", { title: moment(holder.since) }, age(holder.since)),
    Object.entries(holder.consumed).map(([name, amount]) => `${name} ${amount}`).join(", ") || "all",
  ]));
}

function counters(device) {
  return [...device.counters.values()].map((counter) => h("div", {},
    h("p", { class: "plain" }, `${counter.set} ${counter.name}: ${counter.total} in total`),
    meter(Math.round((counter.used / (counter.size || 1)) * 100), 100, `${counter.name} used, in percent`)));
}

function history(key) {
  const seen = store.history.get(key) ?? [];
  return h("section", { class: "card" }, h("h2", {}, "History"),
    seen.length
      ? h("ol", { class: "timeline" }, seen.map((item) => h("li", {}, item.what, " ", h("time", { datetime: item.at }, moment(item.at)))))
      : h("p", { class: "soft" }, "No changes since this page was opened. Kubernetes stores no device history."));
}
