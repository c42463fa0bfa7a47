// All nodes as a heat map, grouped by zone, rack, class or shape, and as a list; and the page of one node.

import { actionBar } from "../actions.js";
import { bar, card, facts, h, keyed, replace, replaceOn, since } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { percent } from "../format.js";
import { Heatmap } from "../heatmap.js";
import { joined, link, parameter, podLink, tag } from "../links.js";
import { allNodes, cardText, claimsOf, NO_NODE, node as nodeNamed, reasonOf } from "../model.js";
import { Rows } from "../rows.js";
import { store } from "../store.js";
import { moveFocus, nodeLegend, signature, tile } from "../tiles.js";

const LISTED_NODES_MAX = 8;
const GROUPS = {
  zone: (node) => node.zone || "no zone",
  rack: (node) => node.rack || "no rack",
  "instance type": (node) => node.shape || "no instance type",
  class: (node) => [...new Set(node.cards.flatMap((item) => item.classes))].sort().join(", ") || "no class",
  state: (node) => node.problem || "ready",
};

export const nodesView = {
  title: "Nodes",

  open(main) {
    this.filters = new Filters([{ name: "group", label: "Group by", any: "nothing" }, { name: "class", label: "Class" }, { name: "zone", label: "Zone" }, { name: "state", label: "State" }], () => this.render());
    this.heat = new Heatmap({ cells: "nodes", label: "Nodes by use" });
    this.rows = new Rows("Nodes", [
      { title: "Node", cell: (node) => link(["node", node.name], node.name), grow: true },
      { title: "State", cell: (node) => tag(node.problem || (node.ready ? "ready" : "unknown")) },
      { title: "In use", cell: (node) => h("span", { class: "use" }, bar(node.share), percent(node.share)) },
      { title: "Devices", cell: (node) => String(node.total), number: true, wide: true },
      { title: "Free", cell: (node) => String(node.free), number: true, wide: true },
      { title: "Pods", cell: (node) => String(node.pods), number: true, wide: true },
      { title: "Zone", cell: (node) => node.zone, wide: true },
      { title: "Rack", cell: (node) => node.rack, wide: true },
      { title: "Age", cell: (node) => since(node.created), wide: true, short: true },
    ]);
    replace(main, h("div", { class: "head" }, h("h1", {}, "Nodes"), this.rows.note), this.filters.element,
      h("div", { class: "stack" }, this.card = h("section", { class: "card" }, h("div", { class: "head" }, h("h2", {}, "Devices in use by node"), nodeLegend()), this.heat.element), this.rows.element));
    this.render();
  },

  close() {
    this.heat.close();
    this.rows.close();
  },

  render() {
    const nodes = allNodes().filter((node) => node.name !== NO_NODE);
    this.filters.options("group", Object.keys(GROUPS));
    this.filters.options("class", store.rows("classes").map((row) => row.name).sort());
    this.filters.options("zone", [...new Set(nodes.map((node) => node.zone).filter(Boolean))].sort());
    this.filters.options("state", ["ready", "not ready", "cordoned"]);
    const [group, type, zone, state] = ["group", "class", "zone", "state"].map(parameter);
    const words = this.filters.words;
    const shown = nodes.filter((node) => (!zone || node.zone === zone) && (!state || (node.problem || "ready") === state)
      && (!type || node.cards.some((item) => item.classes.includes(type))) && matches(words, `${node.name} ${node.zone} ${node.rack} ${node.shape}`));
    // The list says it all.
    this.card.hidden = shown.length <= LISTED_NODES_MAX;
    this.heat.canvas.setAttribute("aria-label", `${shown.length} nodes by use. Arrow keys move between nodes, Enter opens one.`);
    this.heat.update(shown, GROUPS[group] ?? (() => ""));
    this.rows.update(shown, nodes.length, "node");
  },
};

export const nodeView = {
  title: "Node",

  open(main, [name]) {
    this.name = name;
    this.head = h("div", {});
    this.map = h("div", { class: "tiles", onkeydown: moveFocus });
    this.facts = h("div", {});
    this.pods = new Rows("Pods of the node", [
      { title: "Pod", cell: (pod) => podLink(pod.namespace, pod.name), grow: true },
      { title: "State", cell: (pod) => tag(pod.state) },
      { title: "Reason", cell: (pod) => h("span", { title: reasonOf(pod) }, reasonOf(pod)), detail: true, grow: true },
      { title: "Age", cell: (pod) => since(pod.created), short: true },
    ], "No Pods.");
    const isCordoned = () => store.get("nodes", name)?.cordoned;
    this.actions = actionBar("", {
      cordon: { text: "Cordon", mild: true, when: () => !isCordoned(), question: `Let no new Pods onto ${name}? Running ones stay.`, parameters: () => ({ name }) },
      uncordon: { text: "Uncordon", mild: true, when: isCordoned, question: `Let Pods onto ${name} again?`, parameters: () => ({ name }) },
    }, [
      { text: "What if I drain it?", parameters: { change: "drain", name } },
      { text: "What if it fails?", parameters: { change: "remove-node", name } },
      { text: "What if I add more like it?", parameters: { change: "add-nodes", name }, ask: { name: "count", label: "Number of nodes to add", value: "2", type: "number" } },
    ]);
    replace(main, this.head, this.actions, h("div", { class: "stack" }, card("Devices", this.map), h("div", { class: "columns aside" }, card("Details", this.facts), h("section", {}, h("div", { class: "head" }, h("h2", {}, "Pods"), this.pods.note), this.pods.element))));
    this.render();
  },

  close() {
    this.pods.close();
  },

  render() {
    const node = nodeNamed(this.name);
    if (!node) {
      replaceOn(this.head, store.loaded, () => [h("h1", {}, this.name), h("p", {}, store.loaded ? "Not found: the node does not exist, or you cannot read it." : "Loading…")]);
      return;
    }
    this.actions.refresh();
    const state = node.problem || (node.ready ? "ready" : "");
    replaceOn(this.head, [state, node.share, node.total], () => h("h1", {}, node.name, " ", state ? tag(state) : null, " ", h("small", {}, `${percent(node.share)} of ${node.total} devices in use`)));
    keyed(this.map, node.cards.map((item) => ({ key: item.key, item, signature: `${signature(item)}|${holders(item).flat().map((claim) => claim.key).join()}` })), ({ item }) => deviceLine(item, item === node.cards[0]));
    replaceOn(this.facts, node.row, () => facts([["Zone", node.zone], ["Rack", node.rack], ["Instance type", node.shape], ["Taints", node.taints.join(", ")], ["Pods", String(node.pods)], ["Age", since(node.created)],
      ...node.plugins.map(([resource, allocatable, unhealthy, used]) => [resource, `${used} of ${allocatable} in use${unhealthy ? `, ${unhealthy} unhealthy` : ""}`])]));
    const pods = store.rows("pods").filter((pod) => pod.node === this.name);
    this.pods.update(pods, pods.length, "Pod");
  },
};

// A tile with what is in it: partitions and their claims.
function deviceLine(item, first) {
  const held = holders(item);
  const claims = item.segments.map(([name, share], index) => h("li", {}, item.published > 1 ? `${name} ` : "", joined(held[index].map((claim) => link(["claim", claim.namespace, claim.name], `${claim.namespace}/${claim.name}`, { tabindex: "-1" }))), item.published > 1 || share < 1 ? ` ${percent(share)}` : ""));
  return h("div", { class: "device-line" }, tile(item, first), h("div", {}, h("span", { class: "name", title: cardText(item) }, item.name), " ", h("span", { class: "soft" }, [item.model, item.published > 1 ? `${item.published} partitions` : ""].filter(Boolean).join(" · ")),
    claims.length ? h("ul", { class: "bare" }, claims) : item.note ? h("div", { class: "soft" }, item.note) : null));
}

// The claims of each segment of a device.
function holders(item) {
  return item.plugin ? item.segments.map(() => []) : item.segments.map(([name]) => claimsOf(`${item.driver}/${item.pool}/${name}`));
}
