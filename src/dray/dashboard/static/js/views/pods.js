// Pods, grouped by workload or one by one; the page of one Pod; the page of a workload.

import { query } from "../api.js";
import { actionBar } from "../actions.js";
import { card, facts, h, replace, replaceOn, since, table } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { number, oneLine, plural } from "../format.js";
import { claimLink, deviceLink, joined, link, parameter, podLink, tag } from "../links.js";
import { compareNames, reasonOf } from "../model.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";
import { podDecisions } from "./decisions.js";
import { explanation } from "./explanation.js";

const STATES = ["pending", "starting", "running", "error", "succeeded", "failed", "deleting"];
const EXPLAINED = new Set(["Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "Job"]);

function podColumns() {
  return [
    { title: "Pod", cell: (pod) => podLink(pod.namespace, pod.name), grow: true },
    { title: "State", cell: (pod) => tag(pod.state) },
    { title: "Node", cell: (pod) => (pod.node ? link(["node", pod.node], pod.node) : ""), wide: true },
    { title: "Claims", cell: (pod) => joined(pod.claims.map((name) => link(["claim", pod.namespace, name], name, { title: name }))), wide: true },
    { title: "Reason", cell: (pod) => h("span", { title: reasonOf(pod) }, reasonOf(pod)), detail: true, grow: true },
    { title: "Age", cell: (pod) => since(pod.created), short: true },
  ];
}

export const podsView = {
  title: "Pods",

  open(main) {
    this.filters = new Filters([{ name: "by", label: "Show", any: "Pods" }, { name: "ns", label: "Namespace" }, { name: "state", label: "State" }], () => this.render(), "Name, node or reason");
    this.pods = new Rows("Pods", podColumns());
    this.workloads = new Rows("Workloads", [
      { title: "Workload", cell: (row) => link(["workload", row.kind, row.namespace, row.name], `${row.namespace}/${row.name}`), grow: true },
      { title: "Kind", cell: (row) => row.kind },
      { title: "Pods", cell: (row) => number(row.pods.length), number: true, wide: true },
      { title: "States", cell: (row) => joined(row.states.map(([state, count]) => h("span", {}, tag(state), ` ${number(count)}`)), " "), detail: true, grow: true },
      { title: "Reason", cell: (row) => h("span", { title: row.reason }, row.reason), wide: true, grow: true },
    ]);
    this.list = h("div", {});
    this.head = h("div", { class: "head" });
    replace(main, this.head, this.filters.element, this.list);
    this.shown = null;
    this.render();
  },

  close() {
    this.pods.close();
    this.workloads.close();
  },

  render() {
    const all = store.memo("pod rows", ["pods"], () => store.rows("pods").sort((a, b) => compareNames(a.key, b.key)));
    this.filters.options("by", ["workloads"]);
    this.filters.options("ns", [...new Set(all.map((pod) => pod.namespace))]);
    this.filters.options("state", STATES);
    const [by, namespace, state] = ["by", "ns", "state"].map(parameter);
    const words = this.filters.words;
    const found = all.filter((pod) => (!namespace || pod.namespace === namespace) && (!state || pod.state === state) && matches(words, `${pod.key} ${pod.node} ${pod.owner} ${pod.reason}`));
    const rows = by === "workloads" ? this.workloads : this.pods;
    if (this.shown !== rows) {
      this.shown = rows;
      replace(this.head, h("h1", {}, "Pods"), rows.note);
      replace(this.list, rows.element);
    }
    if (rows === this.pods) return rows.update(found, all.length, "Pod");
    const grouped = workloads(found);
    return rows.update(grouped, grouped.length, "workload");
  },
};

function workloads(pods) {
  const groups = new Map();
  for (const pod of pods) {
    const [kind, name] = pod.owner ? pod.owner.split("/") : ["Pod", pod.name];
    const key = `${pod.namespace}/${kind}/${name}`;
    if (!groups.has(key)) groups.set(key, { key, kind, namespace: pod.namespace, name, pods: [] });
    groups.get(key).pods.push(pod);
  }
  for (const group of groups.values()) {
    group.states = STATES.map((state) => [state, group.pods.filter((pod) => pod.state === state).length]).filter(([, count]) => count);
    group.reason = reasonOf(group.pods.find((pod) => ["pending", "error", "failed"].includes(pod.state)) ?? group.pods[0]);
  }
  return [...groups.values()];
}

export const workloadView = {
  title: "Workload",

  open(main, [kind, namespace, name]) {
    if (kind === "Pod") {
      location.replace(`#/pod/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
      return;
    }
    Object.assign(this, { kind, namespace, name });
    this.rows = new Rows("Pods of the workload", podColumns(), "No Pods.");
    this.blocked = h("div", {});
    replace(main, h("div", { class: "head" }, h("h1", {}, `${namespace}/${name} `, h("small", {}, kind)), this.rows.note), this.blocked, h("div", { class: "stack" }, this.rows.element,
      EXPLAINED.has(kind) ? explanation(kind.toLowerCase(), namespace, name) : null));
    this.render();
  },

  close() {
    this.rows?.close();
  },

  render() {
    if (!this.rows) return;
    const blocked = store.rows("blocked").find((row) => row.kind === this.kind && row.namespace === this.namespace && row.name === this.name);
    replaceOn(this.blocked, blocked?.reason ?? "", () => (blocked ? h("p", { class: "notice", title: blocked.reason }, oneLine(blocked.reason)) : null));
    const pods = store.rows("pods").filter((pod) => pod.namespace === this.namespace && pod.owner === `${this.kind}/${this.name}`);
    this.rows.update(pods, pods.length, "Pod");
  },
};

export const podView = {
  title: "Pod",

  open(main, [namespace, name]) {
    Object.assign(this, { namespace, name, object: null, events: [], seen: null });
    this.head = h("div", {});
    this.body = h("div", { class: "stack" });
    this.decisions = h("div", { class: "stack" });
    const parameters = () => ({ namespace, name, uid: this.object?.metadata.uid });
    // What is deleted is what was shown: its uid must be known.
    const when = () => Boolean(this.object);
    this.actions = actionBar(namespace, {
      evict: { text: "Evict", when, question: `Evict ${namespace}/${name}? Disruption budgets are respected.`, parameters },
      "delete-pod": { text: "Delete", when, question: `Delete ${namespace}/${name}?`, parameters },
    }, [{ text: "How many more fit?", parameters: { change: "copies", namespace, name } }]);
    replace(main, this.head, this.actions, h("div", { class: "columns" }, h("div", { class: "stack" }, explanation("pod", namespace, name), this.decisions), this.body));
    this.render();
  },

  render() {
    const row = store.get("pods", `${this.namespace}/${this.name}`);
    if (!row) {
      replaceOn(this.head, store.synced.has("Pod"), () => [h("h1", {}, `${this.namespace}/${this.name}`), h("p", {}, store.synced.has("Pod") ? "Not found: the Pod does not exist, or you cannot read it." : "Loading…")]);
      replaceOn(this.body, null, () => null);
      return;
    }
    if (row !== this.seen) this._load(row);
    this.actions.refresh();
    const reason = reasonOf(row);
    replaceOn(this.head, [row.state, reason], () => [h("h1", {}, `${this.namespace}/${this.name} `, tag(row.state)),
      // The explanation below says more, and in plainer words.
      reason && row.state === "pending" ? h("details", { class: "notice" }, h("summary", {}, "What the scheduler wrote"), reason) : reason ? h("p", { class: "notice" }, reason) : null]);
    const claims = row.claims.map((name) => store.get("claims", `${row.namespace}/${name}`) ?? store.get("claims", `classic:${row.namespace}/${name}`) ?? { namespace: row.namespace, name, devices: [], state: "missing" });
    replaceOn(this.body, [row, this.object, this.events, claims], () => [
      card("Details", facts([
        ["Node", row.node ? link(["node", row.node], row.node) : "none"], ["Scheduler", this.object?.spec.schedulerName], ["Age", since(row.created)],
        ["Workload", row.owner ? link(["workload", row.owner.split("/")[0], row.namespace, row.owner.split("/")[1]], row.owner) : ""], ["Restarts", row.restarts ? String(row.restarts) : ""],
        ["Claims", claims.map((claim) => h("div", {}, claimLink(claim.namespace, claim.name), " ", tag(claim.state), " ", joined(claim.devices.map((key) => deviceLink(key)))))],
      ])),
      this.object ? card("Containers", containers(this.object)) : null,
      card("Events", events(this.events)),
    ]);
  },

  async _load(row) {
    this.seen = row;
    try {
      const answer = await query("object", { kind: "Pod", namespace: row.namespace, name: row.name });
      if (this.seen !== row) return;
      Object.assign(this, answer);
      this.render();
      const found = await podDecisions(this.object.metadata.uid);
      if (this.seen === row) replace(this.decisions, found.length ? card("Decisions", found) : null);
    } catch {
      // Deleted meanwhile: the table will say so.
    }
  },
};

function containers(pod) {
  const statuses = new Map((pod.status?.containerStatuses ?? []).map((item) => [item.name, item]));
  return table(["Name", "State", "Claims"], (pod.spec.containers ?? []).map((container) => {
    const status = statuses.get(container.name);
    const [state, details] = Object.entries(status?.state ?? { waiting: {} })[0];
    return [container.name, [state, details.reason ? `: ${details.reason}` : "", status?.restartCount ? `, ${plural(status.restartCount, "restart")}` : ""],
      (container.resources?.claims ?? []).map((claim) => (claim.request ? `${claim.name}/${claim.request}` : claim.name)).join(", ")];
  }));
}

export function events(found) {
  if (!found.length) return h("p", { class: "soft" }, "None.");
  return h("ol", { class: "timeline" }, [...found].reverse().slice(0, 20).map((event) => h("li", { class: event.type === "Warning" ? "bad" : "" }, h("b", {}, event.reason), " ", event.message, " ",
    since(event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp))));
}
