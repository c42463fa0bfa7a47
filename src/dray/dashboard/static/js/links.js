// Addresses of views, and links between them. A view's filters are parameters of its address.

import { h } from "./dom.js";

export function path(...parts) {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function route() {
  const [place, parameters = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = place.split("/").map(decode);
  return { name, rest, parameters: new URLSearchParams(parameters) };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export function parameter(name) {
  return route().parameters.get(name) ?? "";
}

// Changes a filter without a new entry in the history.
export function setParameter(name, value) {
  const [place] = location.hash.split("?");
  const { parameters } = route();
  if (value) parameters.set(name, value);
  else parameters.delete(name);
  const text = parameters.toString();
  history.replaceState(null, "", `${location.pathname}${place || "#/"}${text ? `?${text}` : ""}`);
}

export function link(parts, text, attributes = {}) {
  return h("a", { href: path(...parts), ...attributes }, text);
}

export function claimLink(namespace, name, attributes) {
  return link(["claim", namespace, name], `${namespace}/${name}`, attributes);
}

export function podLink(namespace, name, attributes) {
  return link(["pod", namespace, name], `${namespace}/${name}`, attributes);
}

// The device of a key `driver/pool/name`; pool names may have slashes.
export function deviceLink(key, attributes) {
  const parts = key.split("/");
  return link(["device", parts[0], parts.slice(1, -1).join("/"), parts.at(-1)], parts.at(-1), { title: key, ...attributes });
}

// With the pool, which is usually named after the node.
export function pooledDeviceLink(key) {
  const parts = key.split("/");
  return link(["device", parts[0], parts.slice(1, -1).join("/"), parts.at(-1)], parts.slice(1).join("/"), { title: key });
}

export function tag(state, text = state) {
  return h("span", { class: `tag ${state}` }, text);
}

export function joined(items, separator = ", ") {
  return items.flatMap((item, index) => (index ? [separator, item] : [item]));
}
