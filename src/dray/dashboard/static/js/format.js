// Formats ages, times, and the scheduler's messages. Pure.

export function age(from, now = Date.now()) {
  if (!from) return "";
  const seconds = Math.max(0, Math.round((now - Date.parse(from)) / 1000));
  for (const [unit, letter] of [[86400, "d"], [3600, "h"], [60, "m"]]) {
    if (seconds >= 2 * unit) return `${Math.floor(seconds / unit)}${letter}`;
  }
  return `${seconds}s`;
}

export function number(value) {
  return value.toLocaleString("en");
}

export function percent(share) {
  return `${Math.round(share * 100)}\u00a0%`;
}

export function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

export function moment(text) {
  return text ? new Date(text).toLocaleString() : "";
}

export function plural(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}

const REASONS = [
  [/exceeded quota: (\S+), requested: (\S+), used: (\S+), limited: (\S+)/, (found) => `exceeds quota ${found[1]}: ${limits(...found.slice(2))}`],
  [/^pod "[^"]+": (.*)$/s, (found) => found[1]],
  [/cannot allocate all claims \((.*)\)$/s, (found) => `not enough free devices: ${devices(found[1])}`],
  [/cannot allocate all claims/, () => "not enough free devices"],
  [/resourceclaim not available on the node/, () => "the claim's devices are on another node"],
  [/Insufficient (\S+)/, (found) => `insufficient ${found[1]}`],
  [/were unschedulable/, () => "cordoned"],
  [/untolerated taint\(s\)/, () => "has a taint that the Pod does not tolerate"],
  [/untolerated taint \{(.*?)\}/, (found) => `has a taint that the Pod does not tolerate (${found[1].trim()})`],
  [/didn't match Pod's node affinity\/selector/, () => "does not match the Pod's node affinity or selector"],
  [/Too many pods/, () => "maximum number of Pods reached"],
  [/free ports/, () => "the requested host port is in use"],
];

// "gpu.deviceclass.resource.k8s.io/devices" as "gpu devices".
export function shortResource(name) {
  return name.replace(/^(.+)\.deviceclass\.resource\.k8s\.io\/(\w+)$/, "$1 $2");
}

// "cpu=1,pods=1" of each amount: what is requested, used and allowed of a resource.
function limits(requested, used, limited) {
  const [wanted, taken, allowed] = [requested, used, limited].map((text) => Object.fromEntries(text.split(",").map((part) => part.split("="))));
  return Object.keys(wanted).map((resource) => `${taken[resource]} of ${allowed[resource]} ${shortResource(resource)} in use, ${wanted[resource]} requested`).join("; ");
}

function devices(text) {
  return text.replace(/request "([^"]+)": /g, "$1: ").replace(/(\d+) usable but (\d+) needed/g, "$1 usable, $2 needed");
}

// Splits "0/5 nodes are available: 3 Insufficient cpu, 2 …" into one line per reason.
export function plainReasons(message) {
  const found = /^(\d+)\/(\d+) nodes are available: (.*?)\.?$/s.exec((message || "").split(". ")[0] + ".");
  if (!found) return message ? [plainReason(message)] : [];
  return splitReasons(found[3]).map((part) => {
    const counted = /^(\d+) (?:node\(s\) )?(.*)$/s.exec(part);
    return counted ? `${plural(Number(counted[1]), "node")}: ${plainReason(counted[2])}` : plainReason(part);
  });
}

// Commas inside brackets do not separate reasons.
function splitReasons(text) {
  const parts = [];
  let depth = 0, start = 0;
  for (let index = 0; index < text.length; index++) {
    if ("({".includes(text[index])) depth++;
    if (")}".includes(text[index])) depth--;
    if (!depth && text.startsWith(", ", index) && /^\d+ /.test(text.slice(index + 2))) {
      parts.push(text.slice(start, index));
      start = index + 2;
    }
  }
  parts.push(text.slice(start).replace(/\.$/, ""));
  return parts;
}

export function plainReason(text) {
  for (const [pattern, format] of REASONS) {
    const found = pattern.exec(text);
    if (found) return format(found);
  }
  return text;
}

// The scheduler's message, or another reason, as one line.
export function oneLine(message) {
  return plainReasons(message).join("; ").replace(/\s+/g, " ");
}
