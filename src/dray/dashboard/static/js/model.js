// Derives devices with their states, claims, Pods and namespaces from API objects. Pure.

export const STATES = {
  free: "not allocated",
  held: "allocated to a claim",
  shared: "allocated to several claims",
  tainted: "requires a toleration",
  blocked: "shared counters are exhausted",
  unusable: "pool is incomplete or invalid",
};
const SYMBOLS = { free: "", held: "●", shared: "◐", tainted: "!", blocked: "–", unusable: "?" };
const UNITS = { m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50 };

export function symbol(state) {
  return SYMBOLS[state];
}

export function quantity(text) {
  const found = /^([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)$/.exec(String(text ?? "0"));
  return found ? Number(found[1]) * (UNITS[found[2]] ?? 1) : 0;
}

export function deviceKey(driver, pool, device) {
  return `${driver}/${pool}/${device}`;
}

export function holdersByDevice(claims) {
  const holders = new Map();
  for (const claim of claims) {
    const allocation = claim.status?.allocation;
    for (const result of allocation?.devices?.results ?? []) {
      const key = deviceKey(result.driver, result.pool, result.device);
      if (!holders.has(key)) holders.set(key, []);
      holders.get(key).push({
        namespace: claim.metadata.namespace,
        name: claim.metadata.name,
        request: result.request,
        admin: Boolean(result.adminAccess),
        consumed: result.consumedCapacity ?? {},
        since: allocation.allocationTimestamp,
        pods: (claim.status.reservedFor ?? []).filter((user) => user.resource === "pods").map((user) => user.name),
      });
    }
  }
  return holders;
}

// Returns pools with the slices of their latest generation.
export function poolsOf(slices) {
  const pools = new Map();
  for (const slice of slices) {
    const { driver, pool } = slice.spec;
    const key = `${driver}/${pool.name}`;
    const existing = pools.get(key);
    if (!existing || pool.generation > existing.generation) {
      pools.set(key, { key, driver, name: pool.name, generation: pool.generation, sliceCount: pool.resourceSliceCount, slices: [slice] });
    } else if (pool.generation === existing.generation) {
      existing.slices.push(slice);
    }
  }
  return pools;
}

export function devicesOf(slices, claims, rules) {
  const holders = holdersByDevice(claims);
  const devices = [];
  for (const pool of poolsOf(slices).values()) {
    const complete = pool.slices.length === pool.sliceCount;
    const counters = countersOf(pool, holders);
    for (const slice of pool.slices) {
      for (const spec of slice.spec.devices ?? []) {
        devices.push(deviceOf(pool, slice, spec, holders, rules, complete, counters));
      }
    }
  }
  return devices;
}

function deviceOf(pool, slice, spec, holders, rules, complete, counters) {
  const key = deviceKey(pool.driver, pool.name, spec.name);
  const held = holders.get(key) ?? [];
  const taints = [...(spec.taints ?? []), ...rules.filter((rule) => selects(rule, pool, spec.name)).map((rule) => rule.spec.taint)];
  const device = {
    key, driver: pool.driver, pool: pool.name, name: spec.name, spec, slice: slice.metadata.name,
    node: slice.spec.nodeName ?? spec.nodeName ?? "", holders: held, taints,
    partition: (spec.consumesCounters ?? []).length > 0, counters,
  };
  device.state = stateOf(device, complete);
  return device;
}

function selects(rule, pool, device) {
  const selector = rule.spec?.deviceSelector;
  if (!selector) return false;
  return (!selector.driver || selector.driver === pool.driver) && (!selector.pool || selector.pool === pool.name)
    && (!selector.device || selector.device === device);
}

function stateOf(device, complete) {
  const users = device.holders.filter((holder) => !holder.admin);
  if (!complete) return "unusable";
  if (users.length && !device.spec.allowMultipleAllocations) return "held";
  if (device.taints.some((taint) => ["NoSchedule", "NoExecute"].includes(taint.effect))) return "tainted";
  if (lacksCounter(device)) return "blocked";
  return users.length ? "shared" : "free";
}

// Returns the shared counters of a pool: total, and consumed by allocated devices.
function countersOf(pool, holders) {
  const counters = new Map();
  for (const slice of pool.slices) {
    for (const set of slice.spec.sharedCounters ?? []) {
      for (const [name, counter] of Object.entries(set.counters ?? {})) {
        counters.set(`${set.name}/${name}`, { set: set.name, name, total: counter.value, size: quantity(counter.value), used: 0 });
      }
    }
  }
  if (!counters.size) return counters;
  for (const slice of pool.slices) {
    for (const spec of slice.spec.devices ?? []) {
      const users = (holders.get(deviceKey(pool.driver, pool.name, spec.name)) ?? []).filter((holder) => !holder.admin);
      if (users.length) eachConsumed(spec, (key, amount) => { if (counters.has(key)) counters.get(key).used += amount; });
    }
  }
  return counters;
}

function eachConsumed(spec, callback) {
  for (const consumed of spec.consumesCounters ?? []) {
    for (const [name, counter] of Object.entries(consumed.counters ?? {})) callback(`${consumed.counterSet}/${name}`, quantity(counter.value));
  }
}

function lacksCounter(device) {
  let lacks = false;
  eachConsumed(device.spec, (key, amount) => {
    const counter = device.counters.get(key);
    if (!counter || counter.used + amount > counter.size) lacks = true;
  });
  return lacks;
}

export function attributeText(value) {
  for (const name of ["string", "int", "bool", "version"]) if (value[name] !== undefined) return String(value[name]);
  for (const name of ["strings", "ints", "bools", "versions"]) if (value[name]) return value[name].join(", ");
  return "";
}

export function taintText(taint) {
  return `${taint.key}${taint.value ? `=${taint.value}` : ""}:${taint.effect}`;
}

export function claimState(claim) {
  if (claim.metadata.deletionTimestamp) return "deleting";
  if (!claim.status?.allocation) return "pending";
  return claim.status.reservedFor?.length ? "reserved" : "allocated";
}

export function requestsOf(claim) {
  return (claim.spec?.devices?.requests ?? []).map((request) => ({
    name: request.name,
    alternatives: request.exactly
      ? [{ key: request.name, ...requirement(request.exactly) }]
      : (request.firstAvailable ?? []).map((sub) => ({ key: `${request.name}/${sub.name}`, ...requirement(sub) })),
  }));
}

function requirement(request) {
  const count = request.allocationMode === "All" ? "all" : String(request.count ?? 1);
  return { text: `${count} × ${request.deviceClassName}`, selectors: (request.selectors ?? []).map((item) => item.cel?.expression ?? "") };
}

export function claimNamesOf(pod) {
  const statuses = new Map((pod.status?.resourceClaimStatuses ?? []).map((item) => [item.name, item.resourceClaimName]));
  const names = (pod.spec.resourceClaims ?? []).map((entry) => entry.resourceClaimName ?? statuses.get(entry.name)).filter(Boolean);
  const extended = pod.status?.extendedResourceClaimStatus?.resourceClaimName;
  return extended ? [...names, extended] : names;
}

export function podState(pod) {
  const phase = pod.status?.phase ?? "Pending";
  if (pod.metadata.deletionTimestamp) return "deleting";
  return { Pending: "pending", Running: "running", Succeeded: "succeeded", Failed: "failed" }[phase] ?? "pending";
}

export function isUnscheduled(pod) {
  return !pod.spec.nodeName && podState(pod) === "pending";
}

export function condition(object, type) {
  return (object.status?.conditions ?? []).find((item) => item.type === type);
}

export function isReady(node) {
  const ready = condition(node, "Ready");
  return !ready || ready.status === "True";
}

export function usageByNamespace(claims) {
  const found = new Map();
  for (const claim of claims) {
    const name = claim.metadata.namespace;
    const row = found.get(name) ?? { namespace: name, claims: 0, pending: 0, devices: 0, hours: 0 };
    found.set(name, row);
    row.claims++;
    const allocation = claim.status?.allocation;
    if (!allocation) { row.pending++; continue; }
    const count = (allocation.devices?.results ?? []).filter((result) => !result.adminAccess).length;
    row.devices += count;
    const since = Date.parse(allocation.allocationTimestamp ?? claim.metadata.creationTimestamp);
    if (since) row.hours += count * Math.max(0, Date.now() - since) / 3600000;
  }
  return found;
}
