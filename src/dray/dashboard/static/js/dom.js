// DOM elements without a framework: h("a", {href}, "text", child), and keyed lists that reuse unchanged elements.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
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

export function table(titles, rows) {
  if (!rows.length) return h("div", { class: "card empty" }, "None found.");
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
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
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
}

export function meter(used, total, label) {
  const share = total ? used / total : 0;
  return h("div", { class: "meter" },
    h("progress", { max: String(Math.max(total, 1)), value: String(used), "aria-label": label }),
    h("span", {}, `${used} of ${total} (${Math.round(share * 100)} %)`));
}
