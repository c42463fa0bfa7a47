// One device: its properties, what holds it, and the other devices of the same physical one.

import { query } from "../api.js";
import { actionBar } from "../actions.js";
import { bar, card, facts, h, replace, replaceOn, since, table } from "../dom.js";
import { percent, sentence } from "../format.js";
import { claimLink, deviceLink, joined, link, podLink, tag } from "../links.js";
import { attributeText, claimsOf, STATES, stateText, taintText } from "../model.js";
import { store } from "../store.js";
import { signature } from "../tiles.js";

export const deviceView = {
  title: "Device",

  open(main, [driver, pool, name]) {
    Object.assign(this, { driver, pool, name, spec: null, sliceNames: "" });
    this.head = h("div", {});
    this.body = h("div", { class: "columns" });
    this.key = `${driver}/${pool}/${name}`;
    const parameters = () => ({ driver, pool, device: name });
    const own = () => rulesOf(this).find((rule) => rule.device);
    this.actions = actionBar("", {
      "taint-device": {
        text: "Taint", question: `Keep Pods away from ${name} of pool ${pool}? NoExecute also evicts those that use it.`, parameters,
        fields: [{ name: "key", label: "Key", value: "example.com/maintenance" }, { name: "effect", label: "Effect", options: ["NoSchedule", "NoExecute"] }],
      },
      "delete-taint": {
        text: "Remove taint", mild: true, when: () => Boolean(own()), question: `Remove the taint of ${name} that a DeviceTaintRule adds?`, parameters: () => ({ name: own().name }),
      },
    });
    replace(main, this.head, this.actions, this.body);
    this.render();
  },

  render() {
    const row = store.get("pools", `${this.driver}/${this.pool}`);
    const claims = claimsOf(this.key);
    // A partition belongs to the card that has it; which one is known from its slice.
    const item = row?.cards.find((found) => found.name === this.name) ?? row?.cards.find((found) => found.segments.some(([name]) => name === this.name)) ?? this._cardOfSpec(row);
    if (row && row.slices.join() !== this.sliceNames) this._load(row);
    this.actions.refresh();
    if (!row) {
      replaceOn(this.head, store.loaded, () => [h("h1", {}, this.name), h("p", {}, store.loaded ? "Not found: no driver publishes this device." : "Loading…")]);
      replaceOn(this.body, null, () => null);
      return;
    }
    replaceOn(this.head, [item?.name, item?.state, item?.note, claims.length], () => heading(this.name, item, claims, row.node));
    replaceOn(this.body, [item && [item.name, signature(item)], this.spec, claims, rulesOf(this)], () => [
      card("Allocations", claims.length ? table(["Claim", "Pods", "For"], claims.map((claim) => [claimLink(claim.namespace, claim.name), joined(claim.pods.map((pod) => podLink(claim.namespace, pod))), since(claim.allocated)])) : h("p", { class: "soft" }, "None.")),
      item && item.published > 1 ? card("Physical device", physical(item)) : null,
      card("Properties", properties(this, row)),
    ]);
  },

  _cardOfSpec(row) {
    const set = this.spec?.consumesCounters?.[0]?.counterSet;
    return set ? row?.cards.find((found) => found.name === set) : null;
  },

  async _load(row) {
    this.sliceNames = row.slices.join();
    const opened = this.key;
    for (const name of row.slices) {
      try {
        const { object } = await query("object", { kind: "ResourceSlice", name });
        const spec = (object.spec.devices ?? []).find((found) => found.name === this.name);
        if (spec && opened === this.key) {
          this.spec = spec;
          this.render();
          return;
        }
      } catch {
        // The slice was replaced meanwhile: the next change of the pool loads it again.
      }
    }
  },
};

// A partition is in use or not, whatever the state of the physical device that it is a part of.
function heading(name, item, claims, node) {
  const where = h("small", {}, [node && node !== "*" ? `on ${node}` : "network-attached", item?.model].filter(Boolean).join(" · "));
  if (!item) return h("h1", {}, name, " ", where);
  const isPart = item.name !== name;
  const state = isPart && claims.length ? "used" : item.state;
  return [h("h1", {}, name, " ", isPart && !claims.length ? null : tag(state, stateText(state)), " ", where),
    h("p", { class: "soft" }, isPart && !item.note ? `A partition of ${item.name}, which is ${stateText(item.state)}.` : sentence(item.note || STATES[item.state]))];
}

// The rules that taint a device, those for it alone first.
function rulesOf({ driver, pool, name }) {
  return store.rows("rules").filter((rule) => [[rule.driver, driver], [rule.pool, pool], [rule.device, name]].every(([wanted, found]) => !wanted || wanted === found))
    .sort((a, b) => Boolean(b.device) - Boolean(a.device));
}

function physical(item) {
  return [h("p", { class: "plain" }, `${item.name}: ${percent(item.used)} in use, published as ${item.published} devices`), bar(item.used),
    item.segments.length ? h("ul", { class: "bare" }, item.segments.map(([name, share]) => h("li", {}, deviceLink(`${item.driver}/${item.pool}/${name}`), ` ${percent(share)} `, joined(claimsOf(`${item.driver}/${item.pool}/${name}`).map((claim) => claimLink(claim.namespace, claim.name)))))) : null];
}

function properties(view, row) {
  const spec = view.spec ?? {};
  const attributes = Object.entries(spec.attributes ?? {}).map(([name, value]) => [name, attributeText(value)]);
  const capacity = Object.entries(spec.capacity ?? {}).map(([name, value]) => [name, value.value]);
  const counters = (spec.consumesCounters ?? []).flatMap((set) => Object.entries(set.counters ?? {}).map(([name, value]) => [`consumes ${set.counterSet}/${name}`, value.value]));
  return facts([
    ["Driver", view.driver], ["Pool", view.pool], ["Node", row.node && row.node !== "*" ? link(["node", row.node], row.node) : "any (network-attached)"], ["Slices", row.slices.join(", ")],
    ["Taints", [...(spec.taints ?? []).map(taintText), ...rulesOf(view).map((rule) => `${rule.taint} (rule ${rule.name}${rule.device ? "" : `, for all devices of ${rule.pool ? "the pool" : "the driver"}`})`)].join(", ")],
    ["Multiple allocations", spec.allowMultipleAllocations ? "allowed" : ""], ...attributes, ...capacity, ...counters,
  ]);
}
