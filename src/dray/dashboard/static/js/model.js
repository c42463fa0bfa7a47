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
  loading: "its allocations are not known yet",
};
export const PROBLEMS = new Set(["unusable", "unhealthy", "tainted"]);
export const SYMBOLS = { unusable: "?", unhealthy: "✕", tainted: "!", used: "", partly: "", free: "", loading: "" };
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

// Twice the quantity, in its own unit.
export function doubled(text) {
  const found = /^([\d.]+)(.*)$/.exec(text);
  return found ? `${Number(found[1]) * 2 || 1}${found[2]}` : text;
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

// Nodes by name, each with its devices; also those that are only named by devices. The object of a node stays the same
// until its row or one of its pools changes: what is computed from it is computed again only then.
export function allNodes() {
  return store.memo("nodes", ["nodes", "pools"], () => {
    const parts = new Map();
    for (const row of store.table("nodes").values()) parts.set(row.name, { row, pools: [] });
    for (const pool of store.table("pools").values()) {
      const name = pool.node || NO_NODE;
      if (!parts.has(name)) parts.set(name, { row: null, pools: [] });
      parts.get(name).pools.push(pool);
    }
    if (parts.size !== known.size || [...parts.keys()].some((name) => !known.has(name))) order = sortedNames([...parts.keys()]);
    known = new Map(order.map((name) => [name, nodeOf(name, parts.get(name))]));
    return [...known.values()];
  });
}

let known = new Map();
let order = [];

function sortedNames(names) {
  return names.sort((a, b) => (a === NO_NODE) - (b === NO_NODE) || compareNames(a, b));
}

function nodeOf(name, { row, pools }) {
  const gone = !row && name !== NO_NODE && store.listed(["Node"]) ? "node gone" : "";
  const before = known.get(name);
  if (before && before.row === row && (row || before.closed === gone) && before.pools.length === pools.length && pools.every((pool, index) => pool === before.pools[index])) return before;
  const node = { ...(row ?? { key: name, name, ready: "", cordoned: false, zone: "", rack: "", shape: "", taints: [], plugins: [], pods: 0, created: "", closed: gone }), row, pools };
  node.cards = [...(row ? pluginCards(row) : []), ...pools.flatMap((pool) => pool.cards)];
  Object.assign(node, usage(node.cards, node.closed), { problem: nodeProblem(node), byClass: null });
  return node;
}

export function node(name) {
  allNodes();
  return known.get(name);
}

export function allCards() {
  return store.memo("cards", ["nodes", "pools"], () => allNodes().flatMap((item) => item.cards));
}

const SEVERITY = Object.fromEntries(Object.keys(STATES).map((state, index) => [state, index]));

function noUsage() {
  return { total: 0, used: 0, free: 0, partly: 0, full: 0, out: 0, loading: 0, share: 0, state: "free" };
}

// What is free on a node that takes no Pods is out of use, as `dray top` counts it.
function usage(cards, closed) {
  const counts = noUsage();
  for (const card of cards) {
    counts.total++;
    counts.used += card.used;
    if (PROBLEMS.has(card.state)) counts.out++;
    else if (card.state === "free") counts.free++;
    else if (card.state === "loading") counts.loading++;
    else if (card.state === "partly") counts.partly++;
    else counts.full++;
    if (SEVERITY[card.state] < SEVERITY[counts.state]) counts.state = card.state;
  }
  if (closed) {
    counts.out += counts.free;
    counts.free = 0;
  }
  counts.share = counts.total ? counts.used / counts.total : 0;
  return counts;
}

function added(sum, counts) {
  for (const name of ["total", "used", "free", "partly", "full", "out", "loading"]) sum[name] += counts[name];
  sum.share = sum.total ? sum.used / sum.total : 0;
  return sum;
}

export function clusterUsage() {
  return store.memo("usage", ["nodes", "pools"], () => allNodes().reduce(added, noUsage()));
}

function usageOfNodeByClass(item) {
  if (item.byClass) return item.byClass;
  const classes = new Map();
  for (const card of item.cards) {
    for (const name of card.classes) {
      if (!classes.has(name)) classes.set(name, []);
      classes.get(name).push(card);
    }
  }
  item.byClass = [...classes].map(([name, cards]) => [name, usage(cards, item.closed)]);
  return item.byClass;
}

function nodeProblem(node) {
  if (node.ready && node.ready !== "True") return "not ready";
  if (node.cordoned) return "cordoned";
  return node.closed.replace(/^node /, "");
}

export function usageByClass() {
  return store.memo("classes", ["nodes", "pools", "classes"], () => {
    const classes = new Map([...store.table("classes").values()].map((row) => [row.name, noUsage()]));
    for (const item of allNodes()) {
      for (const [name, counts] of usageOfNodeByClass(item)) {
        if (!classes.has(name)) classes.set(name, noUsage());
        added(classes.get(name), counts);
      }
    }
    return [...classes].map(([name, counts]) => ({ name, ...counts })).sort((a, b) => compareNames(a.name, b.name));
  });
}

// Claims by the device that is allocated to them.
function claimsByDevice() {
  return store.memo("holders", ["claims"], () => {
    const found = new Map();
    for (const claim of store.table("claims").values()) {
      for (const device of claim.devices) {
        if (!found.has(device)) found.set(device, []);
        found.get(device).push(claim);
      }
    }
    return found;
  });
}

export function claimsOf(device) {
  return claimsByDevice().get(device) ?? [];
}

export function stateText(state) {
  return { used: "in use", partly: "partly in use" }[state] ?? state;
}

export function cardText(card) {
  const used = card.used ? `${Math.round(card.used * 100)} % in use` : "";
  return [card.name, ": ", stateText(card.state), used && card.used < 1 ? `, ${used}` : "", card.model ? `, ${card.model}` : ""].join("");
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
      key: `${row.kind}/${row.namespace}/${row.name}`, namespace: row.namespace, owner: `${row.kind}/${row.name}`, pod: null, count: 0, reason: oneLine(row.reason), since: "",
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
      for (const card of allNodes().flatMap((item) => (item.out ? item.cards : []))) {
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
  if (counts.loading) return `${plural(counts.total, "device")}, loading`;
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
