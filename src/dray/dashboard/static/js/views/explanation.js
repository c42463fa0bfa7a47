// The output of `dray explain` for a Pod or claim, requested when the view opens.

import { query } from "../api.js";
import { h, replace, table } from "../dom.js";
import { joined } from "../links.js";
import { plainReason } from "../format.js";

const NODES_MAX = 50;

export function explanation(kind, namespace, name) {
  const body = h("div", { role: "status" }, h("p", { class: "soft" }, "Running dray explain…"));
  const card = h("section", { class: "card" }, h("h2", {}, "Explanation"), body,
    h("button", { type: "button", onclick: () => load() }, "Refresh"));
  async function load() {
    try {
      replace(body, ...content(await query("explain", { kind, namespace, name }), `${namespace}/${name}`));
    } catch (error) {
      replace(body, h("p", { class: "error" }, error.message));
    }
  }
  load();
  return card;
}

function content(answer, subject) {
  const parts = [h("p", { class: "plain" }, headline(answer, subject))];
  if (answer.verdict?.action) parts.push(h("p", {}, h("b", {}, "What to do: "), answer.verdict.action, "."));
  for (const item of answer.given ?? []) {
    parts.push(h("p", {}, h("b", {}, item.request), `: ${item.device}`));
    for (const better of item.passedOver ?? item.passedOver ?? []) parts.push(h("p", { class: "soft" }, `instead of ${better}`));
  }
  for (const hint of answer.hints ?? []) parts.push(h("p", { class: "soft" }, hint));
  if (answer.changes?.length) {
    parts.push(h("h2", {}, "Suggestions"), h("ul", {}, answer.changes.map((change) => h("li", {}, change.text, h("span", { class: "soft" }, ` → fits on ${some(change.nodes)}`)))));
  }
  if (answer.holders?.length) parts.push(h("h2", {}, "Who has the devices"), h("ul", {}, answer.holders.slice(0, 3).map((holder) => h("li", {}, holder))));
  for (const note of answer.notes ?? []) parts.push(h("p", { class: "soft" }, `Note: ${note}.`));
  const nodes = (answer.nodes ?? []).slice(0, NODES_MAX);
  if (nodes.length) {
    parts.push(h("h2", {}, "Nodes"), table(["Node", "Fits", "Reason"], nodes.map((node) => [node.node, node.fits ? "yes" : "no", reason(node)])));
    if (answer.nodes.length > NODES_MAX) parts.push(h("p", { class: "soft" }, `and ${answer.nodes.length - NODES_MAX} more nodes`));
  }
  return parts;
}

function headline(answer, subject) {
  if (answer.verdict) return `${subject} ${answer.verdict.text}.`;
  if (answer.obstacle) return `Not evaluated on any node: ${answer.obstacle}`;
  if (answer.standing === "placed") return answer.node ? `Scheduled to ${answer.node}.` : "Allocated.";
  const fitting = (answer.nodes ?? []).filter((node) => node.fits).length;
  return `Fits on ${fitting} of ${(answer.nodes ?? []).length} nodes.`;
}

function reason(node) {
  if (node.fits) return (node.wouldGet ?? node.wouldGet ?? []).join(", ") || "fits";
  const others = Object.entries(node.rejections ?? {}).filter(([plugin]) => plugin !== "DynamicResources").flatMap(([, reasons]) => reasons.map(plainReason));
  const devices = node.devices ? [node.devices] : Object.entries(node.rejections ?? {}).filter(([plugin]) => plugin === "DynamicResources").flatMap(([, reasons]) => reasons.map(plainReason));
  return joined([...others, ...devices], "; ");
}

function some(names) {
  return names.length > 3 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", ");
}
