// The cluster in one picture, what waits and why, what is broken, and how much of each class is used.

import { bar, card, h, keyed, replace, replaceOn } from "../dom.js";
import { number, percent, plural } from "../format.js";
import { Heatmap } from "../heatmap.js";
import { link, path } from "../links.js";
import { allNodes, broken, clusterUsage, NO_NODE, summaryText, usageByClass, waiting } from "../model.js";
import { store } from "../store.js";
import { headroom } from "./headroom.js";
import { legend, moveFocus, signature, tile } from "../tiles.js";

// Larger clusters are drawn on a canvas.
const TILED_NODES_MAX = 60;
const LINES_MAX = 8;

export const overviewView = {
  title: "Overview",

  open(main) {
    this.heading = h("h1", {}, "Overview");
    this.stats = h("div", { class: "stats" });
    this.map = h("div", { class: "map", onkeydown: moveFocus });
    this.heat = null;
    this.picture = h("div", {}, this.map);
    this.classes = h("div", {});
    this.waiting = h("div", {});
    this.broken = h("div", {});
    replace(main, this.heading, this.stats, h("div", { class: "overview" },
      h("div", { class: "stack" }, h("section", { class: "card picture", "aria-labelledby": "devices-title" }, h("div", { class: "head" }, h("h2", { id: "devices-title" }, "Devices"), this.legend = h("div", {}, legend())), this.picture), card("Classes", this.classes)),
      h("div", { class: "stack" }, card("Waiting", this.waiting), card("Broken", this.broken), card("Headroom", this.headroom = headroom()))));
    this.render();
  },

  close() {
    this.headroom.close();
    this._closeHeat();
  },

  _closeHeat() {
    this.heat?.close();
    this.heat = null;
  },

  render() {
    const nodes = allNodes();
    this.headroom.refresh(nodes.length);
    this._renderStats(nodes);
    this._renderPicture(nodes.filter((node) => node.cards.length));
    const classes = usageByClass();
    replaceOn(this.classes, classes, () => (classes.length ? classes.map(classLine) : h("p", { class: "soft" }, store.loaded ? "No device classes." : "Loading…")));
    const waits = waiting();
    const isListed = store.listed(["Pod"]);
    replaceOn(this.waiting, [isListed, ...waits.slice(0, LINES_MAX + 1)], () => waitingLines(waits));
    const faults = broken();
    replaceOn(this.broken, [isListed, ...faults.slice(0, LINES_MAX + 1)], () => lines(faults.map(brokenLine), "Nothing is broken.", ["pods"], "?state=error"));
  },

  _renderStats(nodes) {
    const devices = clusterUsage();
    const real = nodes.filter((node) => node.name !== NO_NODE);
    const ready = real.filter((node) => node.problem !== "not ready").length;
    const pods = store.rows("pods");
    const listed = (text) => (store.listed(["Pod"]) ? text : "…");
    const count = (state) => pods.filter((pod) => pod.state === state).length;
    // What is not known yet is not zero.
    const known = (text) => (devices.loading || !store.pictured ? "…" : text);
    const values = [
      [known(percent(devices.share)), `of ${plural(devices.total, "physical device")} in use`, devices.share],
      [known(number(devices.free)), "free for new Pods"],
      [known(number(devices.out)), "unavailable to new Pods", undefined, devices.out ? "warn" : ""],
      ready === real.length ? [number(ready), "nodes, all ready"] : [number(real.length - ready), `of ${number(real.length)} nodes not ready`, undefined, "bad"],
      [listed(number(count("running"))), count("running") === 1 ? "Pod running" : "Pods running"],
      [listed(number(count("pending"))), count("pending") === 1 ? "Pod pending" : "Pods pending", undefined, count("pending") ? "warn" : ""],
    ];
    replaceOn(this.stats, values, () => values.map(([value, name, share, tone]) => h("div", { class: `stat ${tone ?? ""}` }, h("b", {}, value), h("span", {}, name), share === undefined ? null : bar(share))));
  },

  _renderPicture(nodes) {
    const large = nodes.length > TILED_NODES_MAX;
    replaceOn(this.legend, large, () => legend(large));
    if (large && !this.heat) {
      this.heat = new Heatmap({ label: "Devices of all nodes; arrow keys move between nodes, Enter opens one" });
      replace(this.picture, this.heat.element);
    } else if (!large && this.heat) {
      this._closeHeat();
      replace(this.picture, this.map);
    }
    if (large) {
      this.heat.canvas.setAttribute("aria-label", `${plural(nodes.length, "node")}, ${summaryText(clusterUsage())}. Arrow keys move between nodes, Enter opens one.`);
      this.heat.update(nodes, () => "");
      return;
    }
    if (!nodes.length) {
      replaceOn(this.picture, store.loaded, () => h("p", { class: "soft" }, store.loaded ? "No devices: no driver has published a ResourceSlice, and no device plugin a resource." : "Loading…"));
      return;
    }
    if (!this.picture.contains(this.map)) {
      this.picture.contentSignature = null;
      replace(this.picture, this.map);
    }
    const focused = this.map.querySelector("a.dev[tabindex='0']")?.dataset.key;
    const first = nodes.some((node) => node.cards.some((item) => item.key === focused)) ? focused : nodes[0].cards[0].key;
    keyed(this.map, nodes.map((node) => ({ key: node.name, node, signature: `${node.problem}|${node.cards.map(signature).join()}` })), ({ node }) => nodeTiles(node, first));
  },
};

export function nodeTiles(node, first) {
  const pools = new Map();
  for (const item of node.cards) {
    const key = item.plugin ? item.name : item.driver;
    if (!pools.has(key)) pools.set(key, []);
    pools.get(key).push(item);
  }
  return h("section", { class: `node ${node.problem ? "problem" : ""}`, "aria-label": `Node ${node.name}` },
    h("header", {}, h("a", { href: path("node", node.name), class: "name" }, node.name === NO_NODE ? "network-attached" : node.name), h("span", {}, node.problem ? [node.problem, " · "] : null, percent(node.share))),
    [...pools].map(([name, cards]) => h("div", { class: "pool" }, pools.size > 1 ? h("small", {}, name) : null, cards.map((item) => tile(item, item.key === first)))));
}

function classLine(row) {
  return h("div", { class: "class-line" }, link(["nodes"], row.name, { href: `#/nodes?class=${encodeURIComponent(row.name)}` }), bar(row.share, `${row.name}: ${percent(row.share)} in use`),
    h("span", {}, row.loading ? `${number(row.total)} devices` : [`${percent(row.share)} of ${number(row.total)}`, h("span", { class: "soft" }, ` · ${number(row.free)} free`)]));
}

export function waitingLines(waits) {
  return lines(waits.map(waitingLine), "Nothing waits.", ["pods"], "?state=pending");
}

function lines(items, empty, all, parameters) {
  if (!items.length) return h("p", { class: "soft" }, store.listed(["Pod"]) ? empty : "Loading…");
  return [h("ul", { class: "lines" }, items.slice(0, LINES_MAX)),
    items.length > LINES_MAX ? h("p", {}, h("a", { href: path(...all) + parameters }, `${plural(items.length - LINES_MAX, "more line")}: all Pods`)) : null];
}

function waitingLine(group) {
  const name = `${group.namespace}/${group.owner.split("/")[1] ?? group.pod.name}`;
  const target = group.pod ? path("pod", group.pod.namespace, group.pod.name) : path("workload", group.owner.split("/")[0], group.namespace, group.owner.split("/")[1]);
  return h("li", { title: group.reason }, h("a", { href: target }, name), group.count > 1 ? h("span", { class: "times" }, ` ×${group.count}`) : null, h("span", { class: "why" }, group.reason));
}

function brokenLine(item) {
  return h("li", { title: item.reason, class: "bad" }, h("a", { href: path(...item.path) }, item.name), item.more ? h("span", { class: "times" }, ` and ${item.more} more`) : null, h("span", { class: "why" }, item.reason));
}

