// DOM elements without a framework: h("a", {href}, "text", child), and keyed lists that reuse unchanged elements.

import { age, moment, number, percent } from "./format.js";

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    // Through the object model: attributes of this name are forbidden by the content security policy.
    else if (name === "style") for (const [property, text] of Object.entries(value)) element.style.setProperty(property, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

// Replaces the content only if the value that it is made of has changed: focus and selection stay otherwise.
export function replaceOn(element, signature, make) {
  const text = JSON.stringify(signature);
  if (element.contentSignature === text) return;
  element.contentSignature = text;
  replace(element, make());
}

// Updates the children of an element to match the items. An item with an unchanged key and signature keeps its
// element, which preserves focus and scroll position.
export function keyed(element, items, make) {
  const known = element.keyedChildren || (element.keyedChildren = new Map());
  const seen = new Set();
  let next = element.firstChild;
  for (const item of items) {
    seen.add(item.key);
    let entry = known.get(item.key);
    if (!entry || entry.signature !== item.signature) {
      const created = make(item);
      if (entry) {
        const focused = entry.element.contains(document.activeElement) ? document.activeElement.dataset.key : null;
        if (next === entry.element) next = next.nextSibling;
        entry.element.replaceWith(created);
        if (focused) created.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
      }
      entry = { element: created, signature: item.signature };
      known.set(item.key, entry);
    }
    if (entry.element === next) next = next.nextSibling;
    else element.insertBefore(entry.element, next);
  }
  for (const [key, entry] of known) {
    if (!seen.has(key)) {
      entry.element.remove();
      known.delete(key);
    }
  }
}

export function card(title, ...content) {
  return h("section", { class: "card" }, h("h2", {}, title), content);
}

export function table(titles, rows) {
  if (!rows.length) return h("p", { class: "soft" }, "None.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": titles.join(", ") },
    h("table", {},
      h("thead", {}, h("tr", {}, titles.map((title) => h("th", { scope: "col" }, title)))),
      h("tbody", {}, rows.map((cells) => h("tr", {}, cells.map((cell) => h("td", {}, cell)))))));
}

// A form control with its label.
export function field(name, control) {
  return h("div", { class: "field" }, h("label", { for: control.id }, name), control);
}

// A list of names with their values; empty values are left out.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined && value.length !== 0)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function bar(share, label) {
  return h("span", { class: "gauge", role: "img", "aria-label": label ?? `${percent(share)} in use` },
    h("i", { style: { width: `${Math.min(share, 1) * 100}%` } }));
}

export function meter(used, total, label) {
  return h("div", { class: "meter" }, bar(total ? used / total : 0, `${label}: ${used} of ${total}`), h("span", {}, `${number(used)} of ${number(total)}`));
}

// An age that main.js keeps up to date.
export function since(text) {
  return text ? h("time", { datetime: text, title: moment(text), "data-since": text }, age(text)) : "";
}

export function refreshAges() {
  for (const element of document.querySelectorAll("time[data-since]")) {
    const text = age(element.dataset.since);
    if (element.textContent !== text) element.textContent = text;
  }
}

export function toast(text, bad = false) {
  const element = document.getElementById("toast");
  element.className = bad ? "toast shown bad" : "toast shown";
  element.textContent = text;
  clearTimeout(element.timer);
  element.timer = setTimeout(() => { element.className = "toast"; }, 6000);
}
