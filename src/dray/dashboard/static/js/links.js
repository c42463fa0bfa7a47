// Links between views.

import { h } from "./dom.js";

export function path(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function deviceLink(device) {
  return h("a", { href: path("device", device.driver, device.pool, device.name) }, device.name);
}

export function claimLink(namespace, name) {
  return h("a", { href: path("claim", namespace, name) }, `${namespace}/${name}`);
}

export function podLink(namespace, name) {
  return h("a", { href: path("pod", namespace, name) }, `${namespace}/${name}`);
}

export function tag(state) {
  return h("span", { class: `tag ${state}` }, state);
}

export function joined(items, separator = ", ") {
  return items.flatMap((item, index) => (index ? [separator, item] : [item]));
}
