// The list of claims, and the view of one claim.

import { facts, field, h, replace, table } from "../dom.js";
import { claimLink, joined, path, podLink, tag } from "../links.js";
import { claimState, condition, requestsOf } from "../model.js";
import { store } from "../store.js";
import { age, moment } from "../format.js";
import { explanation } from "./explanation.js";

const ROWS_MAX = 500;

export const claimsView = {
  title: "Claims",
  namespace: "",
  state: "",

  open(main) {
    this.list = h("div", {});
    this.namespaces = h("select", { id: "claims-namespace", onchange: (event) => { this.namespace = event.target.value; this.render(); } });
    const states = h("select", { id: "claims-state", onchange: (event) => { this.state = event.target.value; this.render(); } },
      ["", "pending", "allocated", "reserved", "deleting"].map((value) => h("option", { value }, value || "any")));
    states.value = this.state;
    replace(main, h("h1", {}, "Claims"), h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
      field("Namespace", this.namespaces), field("State", states)), this.list);
    this.render();
  },

  render() {
    const claims = store.of("ResourceClaim");
    const names = [...new Set(claims.map((claim) => claim.metadata.namespace))].sort();
    if (this.namespaces.signature !== names.join()) {
      this.namespaces.signature = names.join();
      replace(this.namespaces, h("option", { value: "" }, "any"), names.map((value) => h("option", { value }, value)));
      this.namespaces.value = names.includes(this.namespace) ? this.namespace : "";
    }
    const shown = claims.filter((claim) => (!this.namespace || claim.metadata.namespace === this.namespace) && (!this.state || claimState(claim) === this.state))
      .sort((a, b) => `${a.metadata.namespace}/${a.metadata.name}`.localeCompare(`${b.metadata.namespace}/${b.metadata.name}`, undefined, { numeric: true }));
    replace(this.list, table(["Claim", "State", "Requests", "Devices", "Pods", "Age"], shown.slice(0, ROWS_MAX).map(row)),
      shown.length > ROWS_MAX ? h("p", { class: "soft" }, `and ${shown.length - ROWS_MAX} more: select a namespace or a state`) : null);
  },
};

function row(claim) {
  const { namespace, name, creationTimestamp } = claim.metadata;
  return [claimLink(namespace, name), tag(claimState(claim)),
    requestsOf(claim).map((request) => request.alternatives.map((alternative) => alternative.text).join(" or ")).join(", "),
    joined(devices(claim)), joined(users(claim)), h("span", { title: moment(creationTimestamp) }, age(creationTimestamp))];
}

function devices(claim) {
  return (claim.status?.allocation?.devices?.results ?? []).map((result) =>
    h("a", { href: path("device", result.driver, result.pool, result.device) }, result.device));
}

function users(claim) {
  return (claim.status?.reservedFor ?? []).map((user) => (user.resource === "pods" ? podLink(claim.metadata.namespace, user.name) : user.name));
}

export const claimView = {
  title: "Claim",

  open(main, [namespace, name]) {
    Object.assign(this, { main, namespace, name });
    this.explanation = explanation("claim", namespace, name);
    this.head = h("div", {});
    this.body = h("div", { class: "columns" });
    replace(main, this.head, h("div", { class: "columns" }, this.body, this.explanation));
    this.render();
  },

  render() {
    const claim = store.get("ResourceClaim", this.namespace, this.name);
    if (!claim) {
      replace(this.head, h("h1", {}, `${this.namespace}/${this.name}`), h("p", {}, "Not found: the claim does not exist, or you cannot read it."));
      replace(this.body);
      return;
    }
    replace(this.head, h("h1", {}, `${this.namespace}/${this.name} `, tag(claimState(claim))));
    replace(this.body,
      h("section", { class: "card" }, h("h2", {}, "Requests"), requests(claim)),
      h("section", { class: "card" }, h("h2", {}, "Timeline"), timeline(claim)));
  },
};

function requests(claim) {
  const results = claim.status?.allocation?.devices?.results ?? [];
  return requestsOf(claim).map((request) => h("div", {},
    h("h2", {}, request.name),
    h("ol", {}, request.alternatives.map((alternative) => {
      const allocated = results.filter((result) => result.request === alternative.key);
      return h("li", {}, h("b", {}, alternative.text), allocated.length ? [" ", tag("allocated"), " ", joined(allocated.map((result) => h("a", { href: path("device", result.driver, result.pool, result.device) }, result.device)))] : null,
        alternative.selectors.map((selector) => h("div", {}, h("code", {}, selector))));
    }))));
}

function timeline(claim) {
  const events = [["Created", claim.metadata.creationTimestamp]];
  const allocation = claim.status?.allocation;
  if (allocation) events.push([`Allocated ${(allocation.devices?.results ?? []).map((result) => result.device).join(", ")}`, allocation.allocationTimestamp]);
  for (const user of claim.status?.reservedFor ?? []) {
    const pod = store.get("Pod", claim.metadata.namespace, user.name);
    events.push([`Reserved for Pod ${user.name}`, pod && condition(pod, "PodScheduled")?.lastTransitionTime]);
    if (pod?.status?.startTime) events.push([`Pod ${user.name} started on ${pod.spec.nodeName}`, pod.status.startTime]);
  }
  for (const event of store.of("Event")) {
    const regarding = event.involvedObject ?? {};
    if (regarding.kind === "ResourceClaim" && regarding.name === claim.metadata.name && regarding.namespace === claim.metadata.namespace) {
      events.push([`${event.reason}: ${event.message}`, event.lastTimestamp ?? event.eventTime, event.type === "Warning"]);
    }
  }
  if (claim.metadata.deletionTimestamp) events.push(["Deletion requested; waiting until no Pod uses the claim", claim.metadata.deletionTimestamp, true]);
  events.sort((a, b) => (a[1] ?? "9").localeCompare(b[1] ?? "9"));
  return [h("ol", { class: "timeline" }, events.map(([what, at, bad]) => h("li", { class: bad ? "bad" : "" }, what, " ", at ? h("time", { datetime: at, title: at }, moment(at)) : null))),
    facts([["Owner", (claim.metadata.ownerReferences ?? []).map((owner) => `${owner.kind} ${owner.name}`).join(", ")], ["Finalizers", (claim.metadata.finalizers ?? []).join(", ")]])];
}
