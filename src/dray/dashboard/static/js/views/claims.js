// The list of claims, and the page of one claim.

import { query } from "../api.js";
import { actionBar } from "../actions.js";
import { card, facts, h, replace, replaceOn, since } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { moment } from "../format.js";
import { claimLink, deviceLink, joined, parameter, podLink, pooledDeviceLink, tag } from "../links.js";
import { compareNames } from "../model.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";
import { explanation } from "./explanation.js";

const STATES = ["pending", "allocated", "reserved", "deleting"];

export const claimsView = {
  title: "Claims",

  open(main) {
    this.filters = new Filters([{ name: "ns", label: "Namespace" }, { name: "state", label: "State" }], () => this.render(), "Name, class or device");
    this.rows = new Rows("Claims", [
      { title: "Claim", cell: (claim) => claimLink(claim.namespace, claim.name), grow: true },
      { title: "State", cell: (claim) => tag(claim.state) },
      { title: "Requests", cell: (claim) => [claim.requests.join(", "), claim.classic ? h("span", { class: "soft" }, " classic") : null], detail: true },
      { title: "Devices", cell: (claim) => joined(claim.devices.map(pooledDeviceLink)), wide: true, grow: true },
      { title: "Pods", cell: (claim) => joined(claim.pods.map((name) => podLink(claim.namespace, name))), wide: true, grow: true },
      { title: "Age", cell: (claim) => since(claim.created), short: true },
    ]);
    replace(main, h("div", { class: "head" }, h("h1", {}, "Claims"), this.rows.note), this.filters.element, this.rows.element);
    this.render();
  },

  close() {
    this.rows.close();
  },

  render() {
    const all = store.memo("claim rows", ["claims"], () => store.rows("claims").sort((a, b) => compareNames(`${a.namespace}/${a.name}`, `${b.namespace}/${b.name}`)));
    this.filters.options("ns", [...new Set(all.map((claim) => claim.namespace))]);
    this.filters.options("state", STATES);
    const [namespace, state] = ["ns", "state"].map(parameter);
    const words = this.filters.words;
    this.rows.update(all.filter((claim) => (!namespace || claim.namespace === namespace) && (!state || claim.state === state)
      && matches(words, `${claim.namespace}/${claim.name} ${claim.requests.join(" ")} ${claim.devices.join(" ")}`)), all.length, "claim");
  },
};

export const claimView = {
  title: "Claim",

  open(main, [namespace, name]) {
    Object.assign(this, { namespace, name, object: null, events: [], seen: null });
    this.head = h("div", {});
    this.body = h("div", { class: "stack" });
    this.actions = actionBar(namespace, {
      "delete-claim": { text: "Delete", when: () => this.object !== null && !this.seen.classic, question: `Delete the claim ${namespace}/${name}? Its devices are released once no Pod uses it.`, parameters: () => ({ namespace, name, uid: this.object?.metadata.uid }) },
    });
    replace(main, this.head, this.actions, h("div", { class: "columns" }, this.body, explanation("claim", namespace, name)));
    this.render();
  },

  render() {
    const row = store.get("claims", `${this.namespace}/${this.name}`) ?? store.get("claims", `classic:${this.namespace}/${this.name}`);
    if (!row) {
      replaceOn(this.head, store.synced.has("ResourceClaim"), () => [h("h1", {}, `${this.namespace}/${this.name}`), h("p", {}, store.loaded ? "Not found: the claim does not exist, or you cannot read it." : "Loading…")]);
      replaceOn(this.body, null, () => null);
      return;
    }
    if (row !== this.seen) this._load(row);
    this.actions.refresh();
    replaceOn(this.head, row.state, () => h("h1", {}, `${this.namespace}/${this.name} `, tag(row.state)));
    replaceOn(this.body, [row, this.object, this.events], () => [
      card("Requests", this.object && !row.classic ? requests(this.object) : h("p", {}, row.requests.join(", "))),
      card("Timeline", timeline(row, this.object, this.events)),
      card("Details", facts([["Devices", joined(row.devices.map((key) => deviceLink(key)))], ["Pods", joined(row.pods.map((name) => podLink(row.namespace, name)))],
        ["Owner", (this.object?.metadata.ownerReferences ?? []).map((owner) => `${owner.kind} ${owner.name}`).join(", ")], ["Finalizers", (this.object?.metadata.finalizers ?? []).join(", ")]])),
    ]);
  },

  async _load(row) {
    this.seen = row;
    try {
      const kind = row.classic ? "ResourceClaim.cdi.k8s.io" : "ResourceClaim";
      const answer = await query("object", { kind, namespace: row.namespace, name: row.name });
      if (this.seen !== row) return;
      Object.assign(this, answer);
      this.render();
    } catch {
      // Deleted meanwhile: the table will say so.
    }
  },
};

function requests(claim) {
  const results = claim.status?.allocation?.devices?.results ?? [];
  return (claim.spec?.devices?.requests ?? []).map((request) => {
    const alternatives = request.exactly ? [{ key: request.name, ...request.exactly }] : (request.firstAvailable ?? []).map((sub) => ({ ...sub, key: `${request.name}/${sub.name}` }));
    return h("div", {}, h("h3", {}, request.name), h("ol", {}, alternatives.map((item) => {
      const got = results.filter((result) => result.request === item.key);
      const count = item.allocationMode === "All" ? "all" : String(item.count ?? 1);
      return h("li", {}, h("b", {}, `${count} × ${item.deviceClassName}`), got.length ? [" ", tag("allocated"), " ", joined(got.map((result) => deviceLink(`${result.driver}/${result.pool}/${result.device}`)))] : null,
        (item.selectors ?? []).map((selector) => h("div", {}, h("code", {}, selector.cel?.expression ?? ""))));
    })));
  });
}

function timeline(row, object, events) {
  const found = [["Created", row.created]];
  if (row.allocated) found.push([`Allocated ${row.devices.map((key) => key.split("/").at(-1)).join(", ")}`, row.allocated]);
  for (const name of row.pods) {
    const pod = store.get("pods", `${row.namespace}/${name}`);
    found.push([`Reserved for Pod ${name}${pod?.node ? ` on ${pod.node}` : ""}`, row.allocated]);
  }
  for (const event of events) found.push([`${event.reason}: ${event.message}`, event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp, event.type === "Warning"]);
  if (object?.metadata.deletionTimestamp) found.push(["Deletion requested; waits until no Pod uses the claim", object.metadata.deletionTimestamp, true]);
  found.sort((a, b) => (a[1] || "9").localeCompare(b[1] || "9"));
  return h("ol", { class: "timeline" }, found.map(([what, at, bad]) => h("li", { class: bad ? "bad" : "" }, what, " ", at ? h("time", { datetime: at, title: at }, moment(at)) : null)));
}
