// All devices by node: a card for each node, a square for each device with its state as colour and symbol.

import { classes as fetchClasses } from "../api.js";
import { field, h, keyed, replace } from "../dom.js";
import { path } from "../links.js";
import { attributeText, devicesOf, isReady, isUnscheduled, STATES, symbol } from "../model.js";
import { store } from "../store.js";
import { plural } from "../format.js";

const NO_NODE = "network-attached";
const CLASSES_MILLISECONDS = 3000;

export function allDevices() {
  return store.memo("devices", (all) => devicesOf(all.of("ResourceSlice"), all.of("ResourceClaim"), all.of("DeviceTaintRule")));
}

export const mapView = {
  title: "Devices",
  filter: { driver: "", state: "", class: "", namespace: "", text: "" },
  classes: null,

  open(main) {
    this.tiles = h("div", { class: "tiles" });
    this.selects = {};
    this.filters = h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() });
    this.count = h("p", { class: "soft", role: "status" });
    this.map = h("div", { class: "map", onkeydown: (event) => moveFocus(event) });
    this.empty = h("div", { class: "card empty", hidden: true });
    for (const [name, label] of [["driver", "Driver"], ["class", "Class"], ["state", "State"], ["namespace", "Claim namespace"]]) {
      this.selects[name] = h("select", { id: `filter-${name}`, onchange: (event) => this.setFilter(name, event.target.value) });
      this.filters.append(field(label, this.selects[name]));
    }
    this.filters.append(field("Name or attribute (model=a100)",
      h("input", { id: "filter-text", type: "search", value: this.filter.text, oninput: (event) => this.setFilter("text", event.target.value) })));
    replace(main, h("h1", {}, "Devices"), this.tiles, this.filters, legend(), this.count, this.empty, this.map);
    this.render();
  },

  setFilter(name, value) {
    this.filter[name] = value;
    if (name === "class" && value) this.loadClasses();
    this.render();
  },

  async loadClasses() {
    if (this.classes && Date.now() - this.classes.at < CLASSES_MILLISECONDS) return;
    this.classes = { at: Date.now(), devices: this.classes?.devices ?? {} };
    try {
      const devices = await fetchClasses();
      this.classes.devices = Object.fromEntries(Object.entries(devices).map(([name, keys]) => [name, new Set(keys)]));
      this.render();
    } catch {
      this.classes = null;
    }
  },

  render() {
    const devices = allDevices();
    this.renderTiles(devices);
    this.renderSelects(devices);
    const matches = devices.filter((device) => this.matches(device));
    const filtered = Object.values(this.filter).some(Boolean);
    replace(this.count, filtered ? `${plural(matches.length, "device")} of ${devices.length} match` : "");
    this.renderNodes(devices, new Set(matches.map((device) => device.key)), filtered);
    if (this.filter.class) this.loadClasses();
  },

  renderTiles(devices) {
    const counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, 0]));
    for (const device of devices) counts[device.state]++;
    const pending = store.of("Pod").filter(isUnscheduled).length;
    const tiles = [
      [devices.length, "devices"], [counts.free, "free"], [counts.held + counts.shared, "in use"],
      [counts.tainted + counts.blocked + counts.unusable, "unavailable"], [store.of("Node").length, "nodes"], [pending, "pending Pods"],
    ];
    replace(this.tiles, tiles.map(([number, text]) => h("div", { class: "tile" }, h("b", {}, number), h("span", {}, text))));
  },

  renderSelects(devices) {
    const options = {
      driver: [...new Set(devices.map((device) => device.driver))],
      state: Object.keys(STATES),
      class: store.of("DeviceClass").map((item) => item.metadata.name),
      namespace: [...new Set(devices.flatMap((device) => device.holders.map((holder) => holder.namespace)))],
    };
    for (const [name, values] of Object.entries(options)) {
      const signature = values.sort().join("\n");
      const select = this.selects[name];
      if (select.signature === signature) continue;
      select.signature = signature;
      replace(select, h("option", { value: "" }, "any"), values.map((value) => h("option", { value }, value)));
      select.value = values.includes(this.filter[name]) ? this.filter[name] : "";
    }
  },

  matches(device) {
    const { driver, state, namespace, text } = this.filter;
    if (driver && device.driver !== driver) return false;
    if (state && device.state !== state) return false;
    if (namespace && !device.holders.some((holder) => holder.namespace === namespace)) return false;
    if (this.filter.class && !this.classes?.devices[this.filter.class]?.has(device.key)) return false;
    return !text || matchesText(device, text.trim().toLowerCase());
  },

  renderNodes(devices, matching, filtered) {
    const byNode = new Map(store.of("Node").map((node) => [node.metadata.name, { node, devices: [] }]));
    for (const device of devices) {
      const name = device.node || NO_NODE;
      if (!byNode.has(name)) byNode.set(name, { node: null, devices: [] });
      byNode.get(name).devices.push(device);
    }
    const items = [...byNode.entries()].sort(([a], [b]) => a.localeCompare(b, undefined, { numeric: true }))
      .filter(([, entry]) => !filtered || entry.devices.some((device) => matching.has(device.key)))
      .map(([name, entry]) => ({ key: name, entry, matching, filtered, signature: signature(entry, matching, filtered) }));
    keyed(this.map, items, (item) => nodeCard(item.key, item.entry, item.matching, item.filtered));
    this.empty.hidden = items.length > 0;
    if (!items.length) replace(this.empty, filtered ? "No devices match the filters." : "No nodes and no devices. Start a driver, or create a ResourceSlice with kubectl apply.");
  },
};

function matchesText(device, text) {
  const attributes = Object.entries(device.spec.attributes ?? {}).map(([name, value]) => `${name}=${attributeText(value)}`.toLowerCase());
  return device.key.toLowerCase().includes(text) || device.node.toLowerCase().includes(text) || attributes.some((item) => item.includes(text));
}

function signature(entry, matching, filtered) {
  const states = entry.devices.map((device) => `${device.key}${device.state}${device.holders.length}${filtered && !matching.has(device.key) ? "x" : ""}`);
  return `${entry.node ? isReady(entry.node) : ""}|${entry.node?.spec?.unschedulable ?? ""}|${states.join()}`;
}

function nodeCard(name, entry, matching, filtered) {
  const pools = new Map();
  for (const device of entry.devices) {
    const key = `${device.driver}/${device.pool}`;
    if (!pools.has(key)) pools.set(key, []);
    pools.get(key).push(device);
  }
  const down = entry.node && !isReady(entry.node);
  const held = entry.devices.filter((device) => device.holders.length).length;
  const note = [down ? "not ready" : "", entry.node?.spec?.unschedulable ? "cordoned" : "", entry.devices.length ? `${held}/${entry.devices.length} in use` : "no devices"];
  return h("section", { class: `node${down ? " down" : ""}`, "aria-label": `Node ${name}` },
    h("header", {}, h("b", { title: name }, name), h("span", {}, note.filter(Boolean).join(", "))),
    [...pools.values()].map((devices) => h("div", { class: "pool" },
      pools.size > 1 || !entry.node ? h("small", {}, `${devices[0].driver} · ${devices[0].pool}`) : null,
      devices.map((device) => square(device, filtered && !matching.has(device.key))),
      counters(devices[0]))));
}

function square(device, faded) {
  const holders = device.holders.map((holder) => `${holder.namespace}/${holder.name}`).join(", ");
  const label = `${device.name}: ${device.state}${holders ? `, ${holders}` : ""}`;
  const classes = `dev ${device.state}${device.partition ? " part" : ""}${faded ? " faded" : ""}`;
  return h("a", { class: classes, href: path("device", device.driver, device.pool, device.name), title: label, "aria-label": label, "data-key": device.key }, symbol(device.state) || "\u00a0");
}

function counters(device) {
  const list = [...device.counters.values()];
  if (!list.length) return null;
  return h("small", {}, list.map((counter) => `${counter.set} ${counter.name}: ${Math.round((counter.used / (counter.size || 1)) * 100)} % used`).join(" · "));
}

function legend() {
  return h("ul", { class: "legend", "aria-label": "Legend" }, Object.entries(STATES).map(([state, text]) =>
    h("li", {}, h("span", { class: `dev ${state}`, "aria-hidden": "true" }, symbol(state) || "\u00a0"), `${state}: ${text}`)));
}

// Arrow keys move the focus between devices; so does Tab.
function moveFocus(event) {
  const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
  if (!(event.key in steps) || !event.target.classList.contains("dev")) return;
  const all = [...event.currentTarget.querySelectorAll(".dev")];
  const index = all.indexOf(event.target) + steps[event.key];
  all[Math.min(Math.max(index, 0), all.length - 1)]?.focus();
  event.preventDefault();
}
