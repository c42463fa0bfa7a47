// What the pages show, derived from the server's tables.

import { oneLine, plural } from "./format.js";
import { store } from "./store.js";

// By severity: the first of a group decides how the group is shown.
export const STATES = {
  unusable: "its pool is incomplete or invalid",
  unhealthy: "its driver reports it as unhealthy",
  tainted: "only Pods that tolerate its taint get it",
  used: "nothing more can be allocated",
  partly: "a part or a share of it is allocated",
  free: "not allocated",
};
export const PROBLEMS = new Set(["unusable", "unhealthy", "tainted"]);
export const SYMBOLS = { unusable: "?", unhealthy: "✕", tainted: "!", used: "", partly: "", free: "" };
// Devices that are not local to one node.
export const NO_NODE = "*";
const UNITS = { m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50 };
const COLLATOR = new Intl.Collator("en", { numeric: true });

export function compareNames(a, b) {
  return COLLATOR.compare(a, b);
}

export function quantity(text) {
  const found = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(text ?? "0"));
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : 0;
}

// Devices of device plugins have no names: each counts as a card of its own.
function pluginCards(node) {
  return node.plugins.flatMap(([resource, allocatable, unhealthy, used]) => {
    const states = [...Array(Math.min(used, allocatable)).fill("used"), ...Array(Math.max(allocatable - used, 0)).fill("free"), ...Array(unhealthy).fill("unhealthy")];
    return states.map((state, index) => ({
      key: `plugin/${node.name}/${resource}/${index}`, driver: "device plugin", pool: node.name, node: node.name, name: resource, plugin: true,
      state, used: state === "used" ? 1 : 0, classes: [resource], model: "", segments: [], note: "", published: 1,
    }));
  });
}

// Nodes by name, each with its devices; also those that are only named by devices.
export function allNodes() {
  return store.memo("nodes", ["nodes", "pools"], () => {
    const nodes = new Map();
    for (const row of store.rows("nodes")) nodes.set(row.name, { ...row, cards: pluginCards(row) });
    for (const pool of store.rows("pools")) {
      const name = pool.node || NO_NODE;
      if (!nodes.has(name)) nodes.set(name, { key: name, name, ready: "", cordoned: false, zone: "", rack: "", shape: "", taints: [], plugins: [], pods: 0, created: "", cards: [] });
      nodes.get(name).cards.push(...pool.cards);
    }
    const found = [...nodes.values()].sort((a, b) => (a.name === NO_NODE) - (b.name === NO_NODE) || compareNames(a.name, b.name));
    for (const node of found) Object.assign(node, usage(node.cards), { problem: nodeProblem(node) });
    return found;
  });
}

export function allCards() {
  return store.memo("cards", ["nodes", "pools"], () => allNodes().flatMap((node) => node.cards));
}

export function usage(cards) {
  const counts = { total: cards.length, used: 0, free: 0, partly: 0, full: 0, out: 0, state: "free" };
  const order = Object.keys(STATES);
  for (const card of cards) {
    counts.used += card.used;
    if (PROBLEMS.has(card.state)) counts.out++;
    else if (card.state === "free") counts.free++;
    else if (card.state === "partly") counts.partly++;
    else counts.full++;
    if (order.indexOf(card.state) < order.indexOf(counts.state)) counts.state = card.state;
  }
  counts.share = cards.length ? counts.used / cards.length : 0;
  return counts;
}

function nodeProblem(node) {
  if (node.ready && node.ready !== "True") return "not ready";
  if (node.cordoned) return "cordoned";
  return "";
}

export function usageByClass() {
  return store.memo("classes", ["nodes", "pools", "classes"], () => {
    const classes = new Map(store.rows("classes").map((row) => [row.name, []]));
    for (const card of allCards()) {
      for (const name of card.classes) {
        if (!classes.has(name)) classes.set(name, []);
        classes.get(name).push(card);
      }
    }
    return [...classes].map(([name, cards]) => ({ name, ...usage(cards) })).sort((a, b) => compareNames(a.name, b.name));
  });
}

export function cardText(card) {
  const used = card.used ? `${Math.round(card.used * 100)} % in use` : "";
  const state = card.state === "used" ? "in use" : card.state === "partly" ? "partly in use" : card.state;
  return [card.name, ": ", state, used && card.used < 1 ? `, ${used}` : "", card.model ? `, ${card.model}` : ""].join("");
}

export function cardPath(card) {
  return card.plugin ? ["node", card.node] : ["device", card.driver, card.pool, card.segments[0]?.[0] ?? card.name];
}

// --- What waits, and what is broken: one entry for Pods of the same workload with the same reason. ---

export function reasonOf(pod) {
  if (pod.gates.length) return `scheduling gates: ${pod.gates.join(", ")}`;
  return oneLine(pod.reason) || (pod.state === "pending" ? "not yet processed by a scheduler" : "");
}

function groupedPods(states) {
  const groups = new Map();
  for (const pod of store.rows("pods")) {
    if (!states.has(pod.state)) continue;
    const reason = reasonOf(pod);
    const key = `${pod.namespace}/${pod.owner || pod.name.replace(/-\d+$/, "")}/${reason}`;
    const group = groups.get(key) ?? { key, namespace: pod.namespace, owner: pod.owner, pod, count: 0, reason, since: pod.created };
    group.count++;
    if (pod.created < group.since) group.since = pod.created;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => (a.since < b.since ? -1 : 1));
}

export function waiting() {
  return store.memo("waiting", ["pods", "blocked"], () => {
    const blocked = store.rows("blocked").map((row) => ({
      key: `${row.kind}/${row.namespace}/${row.name}`, namespace: row.namespace, owner: `${row.kind}/${row.name}`, pod: null, count: 0, reason: row.reason, since: "",
    }));
    return [...blocked, ...groupedPods(new Set(["pending"]))];
  });
}

export function broken() {
  return store.memo("broken", ["pods", "nodes", "pools"], () => {
    const found = [];
    const lost = allNodes().filter((node) => node.problem === "not ready");
    if (lost.length) found.push({ key: "nodes", path: ["node", lost[0].name], name: lost[0].name, more: lost.length - 1, reason: lost.length > 1 ? "nodes are not ready" : "node is not ready" });
    for (const state of ["unusable", "unhealthy"]) {
      const reasons = new Map();
      for (const card of allCards()) {
        if (card.state !== state) continue;
        const reason = card.note.split(";")[0] || STATES[state];
        if (!reasons.has(reason)) reasons.set(reason, []);
        reasons.get(reason).push(card);
      }
      for (const [reason, cards] of reasons) {
        const [card] = cards;
        found.push({ key: `${state}/${reason}`, path: cardPath(card), name: `${card.node} ${card.name}`, more: cards.length - 1, reason });
      }
    }
    for (const group of groupedPods(new Set(["error", "failed"]))) {
      found.push({ key: `pod/${group.key}`, path: ["pod", group.pod.namespace, group.pod.name], name: `${group.namespace}/${group.owner.split("/")[1] ?? group.pod.name}`, more: group.count - 1, reason: group.reason || group.pod.state });
    }
    return found;
  });
}

// --- Namespaces. ---

export function usageByNamespace() {
  const found = new Map(store.rows("namespaces").map((row) => [row.name, namespaceRow(row.name)]));
  const of = (name) => found.get(name) ?? found.set(name, namespaceRow(name)).get(name);
  for (const claim of store.rows("claims")) {
    const row = of(claim.namespace);
    row.claims++;
    if (claim.state === "pending") row.pending++;
    row.devices += claim.devices.length;
    const since = Date.parse(claim.allocated);
    if (since) row.hours += (claim.devices.length * Math.max(0, Date.now() - since)) / 3600000;
  }
  for (const pod of store.rows("pods")) {
    const row = of(pod.namespace);
    row.pods++;
    if (pod.state === "pending") row.waiting++;
  }
  return [...found.values()].sort((a, b) => b.devices - a.devices || compareNames(a.name, b.name));
}

function namespaceRow(name) {
  return { key: name, name, claims: 0, pending: 0, devices: 0, hours: 0, pods: 0, waiting: 0 };
}

export function summaryText(counts) {
  return `${plural(counts.total, "device")}, ${Math.round(counts.share * 100)} % in use`;
}

export function attributeText(value) {
  for (const name of ["string", "int", "bool", "version"]) if (value[name] !== undefined) return String(value[name]);
  for (const name of ["strings", "ints", "bools", "versions"]) if (value[name]) return value[name].join(", ");
  return "";
}

export function taintText(taint) {
  return `${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`;
}
