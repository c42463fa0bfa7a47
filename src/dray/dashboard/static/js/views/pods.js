// The list of Pods with the reasons why they are pending, and the view of one Pod.

import { facts, h, replace, table } from "../dom.js";
import { claimLink, joined, path, podLink, tag } from "../links.js";
import { claimNamesOf, claimState, condition, isUnscheduled, podState } from "../model.js";
import { store } from "../store.js";
import { age, moment, plainReasons } from "../format.js";
import { explanation } from "./explanation.js";

const ROWS_MAX = 300;

export const podsView = {
  title: "Pods",
  all: false,

  open(main) {
    this.list = h("div", {});
    const all = h("input", { type: "checkbox", id: "pods-all", onchange: (event) => { this.all = event.target.checked; this.render(); } });
    all.checked = this.all;
    replace(main, h("h1", {}, "Pods"), h("p", {}, all, " ", h("label", { for: "pods-all" }, "Include scheduled Pods")), this.list);
    this.render();
  },

  render() {
    const pods = store.of("Pod").filter((pod) => this.all || isUnscheduled(pod))
      .sort((a, b) => (a.metadata.creationTimestamp ?? "").localeCompare(b.metadata.creationTimestamp ?? ""));
    if (!pods.length) {
      replace(this.list, h("div", { class: "card empty" }, this.all ? "No Pods found." : "No pending Pods."));
      return;
    }
    replace(this.list, table(["Pod", "State", "Node", "Claims", "Reason", "Age"], pods.slice(0, ROWS_MAX).map(row)),
      pods.length > ROWS_MAX ? h("p", { class: "soft" }, `and ${pods.length - ROWS_MAX} more`) : null);
  },
};

function row(pod) {
  const { namespace, name, creationTimestamp } = pod.metadata;
  return [podLink(namespace, name), tag(podState(pod)), pod.spec.nodeName ?? "", joined(claimNamesOf(pod).map((claim) => claimLink(namespace, claim))),
    isUnscheduled(pod) ? reasons(pod) : "", h("span", { title: moment(creationTimestamp) }, age(creationTimestamp))];
}

function reasons(pod) {
  if (pod.spec.schedulingGates?.length) return `scheduling gates: ${pod.spec.schedulingGates.map((gate) => gate.name).join(", ")}`;
  const scheduled = condition(pod, "PodScheduled");
  const lines = plainReasons(scheduled?.message);
  return lines.length ? h("ul", {}, lines.map((line) => h("li", {}, line))) : "not yet processed by a scheduler";
}

export const podView = {
  title: "Pod",

  open(main, [namespace, name]) {
    Object.assign(this, { namespace, name });
    this.head = h("div", {});
    this.body = h("div", { class: "columns" });
    replace(main, this.head, h("div", { class: "columns" }, this.body, explanation("pod", namespace, name)));
    this.render();
  },

  render() {
    const pod = store.get("Pod", this.namespace, this.name);
    if (!pod) {
      replace(this.head, h("h1", {}, `${this.namespace}/${this.name}`), h("p", {}, "Not found: the Pod does not exist, or you cannot read it."));
      replace(this.body);
      return;
    }
    replace(this.head, h("h1", {}, `${this.namespace}/${this.name} `, tag(podState(pod))), isUnscheduled(pod) ? h("div", { class: "card notice" }, reasons(pod)) : null);
    replace(this.body,
      h("section", { class: "card" }, h("h2", {}, "Details"), facts([
        ["Node", pod.spec.nodeName ?? "none"], ["Scheduler", pod.spec.schedulerName], ["Created", moment(pod.metadata.creationTimestamp)],
        ["Owner", (pod.metadata.ownerReferences ?? []).map((owner) => `${owner.kind} ${owner.name}`).join(", ")],
        ["Claims", joined(claimNamesOf(pod).map((name) => claimOf(pod, name)))],
      ])),
      h("section", { class: "card" }, h("h2", {}, "Containers"), containers(pod)),
      h("section", { class: "card" }, h("h2", {}, "Events"), events(pod)));
  },
};

function claimOf(pod, name) {
  const claim = store.get("ResourceClaim", pod.metadata.namespace, name);
  const devices = (claim?.status?.allocation?.devices?.results ?? []).map((result) => h("a", { href: path("device", result.driver, result.pool, result.device) }, result.device));
  return h("span", {}, claimLink(pod.metadata.namespace, name), claim ? [" ", tag(claimState(claim))] : " (missing)", devices.length ? [" ", joined(devices)] : null);
}

function containers(pod) {
  const statuses = new Map((pod.status?.containerStatuses ?? []).map((item) => [item.name, item]));
  return table(["Name", "State", "Restarts", "Claims"], (pod.spec.containers ?? []).map((container) => {
    const status = statuses.get(container.name);
    return [container.name, Object.keys(status?.state ?? { waiting: {} })[0], status?.restartCount ?? 0,
      (container.resources?.claims ?? []).map((claim) => (claim.request ? `${claim.name}/${claim.request}` : claim.name)).join(", ")];
  }));
}

function events(pod) {
  const found = store.of("Event").filter((event) => event.involvedObject?.uid === pod.metadata.uid)
    .sort((a, b) => (b.lastTimestamp ?? b.eventTime ?? "").localeCompare(a.lastTimestamp ?? a.eventTime ?? "")).slice(0, 20);
  if (!found.length) return h("p", { class: "soft" }, "None.");
  return h("ol", { class: "timeline" }, found.map((event) => h("li", { class: event.type === "Warning" ? "bad" : "" }, h("b", {}, event.reason), " ", event.message, " ",
    h("time", { datetime: event.lastTimestamp ?? event.eventTime }, age(event.lastTimestamp ?? event.eventTime)))));
}
