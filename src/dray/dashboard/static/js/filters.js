// Filters of a list, stored in the address: a text and any number of choices.

import { field, h, replace } from "./dom.js";
import { parameter, setParameter } from "./links.js";

export class Filters {
  // choices: [{name, label}]; their options are set by `options`.
  constructor(choices, onChange, textLabel = "Name") {
    this.onChange = onChange;
    this.selects = new Map();
    const controls = choices.map(({ name, label, any = "any" }) => {
      const select = h("select", { id: `filter-${name}`, onchange: (event) => { setParameter(name, event.target.value); onChange(); } });
      select.any = any;
      this.selects.set(name, select);
      return field(label, select);
    });
    this.text = h("input", { id: "filter-q", type: "search", autocomplete: "off", spellcheck: "false", value: parameter("q"), oninput: (event) => { setParameter("q", event.target.value); onChange(); } });
    if (textLabel) controls.push(field(textLabel, this.text));
    this.element = h("form", { class: "filters", "aria-label": "Filters", onsubmit: (event) => event.preventDefault() }, controls);
  }

  // Fills a select; a value of the address that does not exist stays selectable, so that it is not lost while loading.
  options(name, values) {
    const select = this.selects.get(name);
    const chosen = parameter(name);
    const all = chosen && !values.includes(chosen) ? [...values, chosen] : values;
    const signature = all.join("\n");
    if (select.optionsSignature !== signature) {
      select.optionsSignature = signature;
      replace(select, select.any === null ? null : h("option", { value: "" }, select.any), all.map((value) => h("option", { value }, value)));
    }
    if (select.value !== chosen) select.value = chosen;
    return select.value;
  }

  get words() {
    return parameter("q").toLowerCase().split(/\s+/).filter(Boolean);
  }
}

export function matches(words, text) {
  const lower = text.toLowerCase();
  return words.every((word) => lower.includes(word));
}
