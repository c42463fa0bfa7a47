// One device: what it is, who has it, what happened to it.

import { facts, h, meter, replace, table } from "../dom.js";
import { claimLink, joined, podLink, tag } from "../links.js";
import { attributeText, STATES, taintText } from "../model.js";
import { store } from "../store.js";
import { age, moment } from "../words.js";
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
      replace(this.main, h("h1", {}, this.key), h("p", {}, "No driver publishes this device (any more)."), history(this.key));
      return;
    }
    replace(this.main,
      h("h1", {}, device.name, " ", tag(device.state)),
      h("p", { class: "soft" }, `${device.state}: ${STATES[device.state]}`),
      h("div", { class: "columns" },
        h("section", { class: "card" }, h("h2", {}, "What it is"), identity(device)),
        h("section", { class: "card" }, h("h2", {}, "Who has it"), holders(device)),
        device.counters.size ? h("section", { class: "card" }, h("h2", {}, "Shared counters of its pool"), counters(device)) : null,
        history(this.key)));
  },
};

function identity(device) {
  const attributes = Object.entries(device.spec.attributes ?? {}).map(([name, value]) => [name, attributeText(value)]);
  const capacity = Object.entries(device.spec.capacity ?? {}).map(([name, value]) => [name, value.value]);
  return facts([
    ["Driver", device.driver], ["Pool", device.pool], ["Node", device.node || "any (network-attached)"], ["Slice", device.slice],
    ["Taints", device.taints.map(taintText).join(", ")],
    ["Shareable", device.spec.allowMultipleAllocations ? "yes: several claims may have a part of it" : ""],
    ...attributes, ...capacity,
  ]);
}

function holders(device) {
  if (!device.holders.length) return h("p", {}, "Nobody.");
  return table(["Claim", "Request", "Pods", "Since", "Of it"], device.holders.map((holder) => [
    claimLink(holder.namespace, holder.name), holder.admin ? `${holder.request} (administrative access)` : holder.request,
    joined(holder.pods.map((pod) => podLink(holder.namespace, pod))), h("span", { title: moment(holder.since) }, age(holder.since)),
    Object.entries(holder.consumed).map(([name, amount]) => `${name} ${amount}`).join(", ") || "all",
  ]));
}

function counters(device) {
  return [...device.counters.values()].map((counter) => h("div", {},
    h("p", { class: "plain" }, `${counter.set} ${counter.name}: ${counter.total} in all`),
    meter(Math.round((counter.used / (counter.size || 1)) * 100), 100, `${counter.name} used, in percent`)));
}

function history(key) {
  const seen = store.history.get(key) ?? [];
  return h("section", { class: "card" }, h("h2", {}, "History"),
    seen.length
      ? h("ol", { class: "timeline" }, seen.map((item) => h("li", {}, item.what, " ", h("time", { datetime: item.at }, moment(item.at)))))
      : h("p", { class: "soft" }, "Nothing has happened to it while this page was open; the API keeps no longer memory."));
}
