// Actions of users who may, each after a confirmation; and simulations, which change nothing.

import { act, query } from "./api.js";
import { h, replace, replaceOn, toast } from "./dom.js";
import { podLink } from "./links.js";
import { number, oneLine, plural } from "./format.js";

const SHOWN_MAX = 8;

// Buttons for those actions of `offered` that the user may take: {action: {text, question, parameters(), when()}}.
export function actionBar(namespace, offered, simulations = []) {
  const buttons = h("span", { class: "buttons" });
  const element = h("div", { class: "actions" }, simulations.map((item) => h("button", { type: "button", onclick: () => simulate(item) }, item.text)), buttons);
  let allowed = [];
  element.refresh = () => {
    const shown = Object.entries(offered).filter(([action, item]) => allowed.includes(action) && (item.when?.() ?? true));
    replaceOn(buttons, shown.map(([action]) => action), () => shown.map(([action, item]) => h("button", {
      type: "button", class: item.mild ? "" : "danger", onclick: () => confirmed(action, item),
    }, item.text)));
  };
  query("permissions", { namespace }).then((answer) => { allowed = answer; element.refresh(); }).catch(() => {});
  return element;
}

function confirmed(action, { text, question, parameters, fields = [] }) {
  const inputs = fields.map(({ name, label, value, options }) => [name, label, options
    ? h("select", { id: `act-${name}` }, options.map((option) => h("option", { value: option }, option)))
    : h("input", { id: `act-${name}`, value, required: true })]);
  const error = h("p", { class: "error", role: "alert" });
  const box = dialog(text, [
    h("p", {}, question),
    inputs.map(([, label, input]) => h("div", { class: "field" }, h("label", { for: input.id }, label), input)),
    error,
    h("div", { class: "buttons" }, h("button", { type: "submit", class: "danger" }, text), h("button", { type: "button", onclick: () => box.close() }, "Cancel")),
  ], async () => {
    try {
      const values = Object.fromEntries(inputs.map(([name, , input]) => [name, input.value]));
      const { message } = await act(action, { ...parameters(), ...values });
      box.close();
      toast(message);
    } catch (failure) {
      error.textContent = failure.message;
    }
  });
}

function dialog(title, content, onSubmit = null) {
  const box = h("dialog", { "aria-label": title }, h("form", { onsubmit: (event) => { event.preventDefault(); onSubmit?.(); } }, h("h2", {}, title), content));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
}

// ask: {name, label, value, type} of a parameter that the user chooses.
export function simulate({ text, parameters, ask }) {
  const result = h("div", { role: "status" });
  const input = ask ? h("input", { id: "sim-ask", required: true, value: ask.value, type: ask.type ?? "text", ...(ask.type === "number" ? { min: "1", max: "1000" } : {}) }) : null;
  const run = async () => {
    replace(result, h("p", { class: "soft" }, "Running dray simulate on a copy of the cluster…"));
    try {
      replace(result, outcome(await query("simulate", { ...parameters, ...(input ? { [ask.name]: input.value } : {}) })));
    } catch (failure) {
      replace(result, h("p", { class: "error" }, failure.message));
    }
  };
  const box = dialog(text, [
    h("p", { class: "soft" }, "Nothing in the cluster changes."),
    input ? h("div", { class: "field" }, h("label", { for: "sim-ask" }, ask.label), input) : null,
    result,
    h("div", { class: "buttons" }, input ? h("button", { type: "submit", class: "primary" }, "Simulate") : null, h("button", { type: "button", onclick: () => box.close() }, "Close")),
  ], run);
  if (!input) run();
}

function outcome(answer) {
  if (answer.count !== undefined) return h("p", { class: "plain" }, `${plural(answer.count, "more Pod")} like this fit. The next one does not: ${oneLine(answer.why)}`);
  const found = answer.outcome ?? answer;
  const waiting = found.pending.filter((item) => !item.waited);
  const parts = [h("p", { class: "plain" }, summary([[found.placed, "scheduled"], [found.moved, "moved"], [waiting, "newly pending"], [found.lost, "lost"]], found.unchanged))];
  parts.push(pods("Moved", found.moved, (item) => `→ ${item.node}`), pods("Scheduled", found.placed, (item) => `on ${item.node}`), pods("Pending", waiting, (item) => oneLine(item.why)));
  if (found.lost.length) parts.push(h("h3", {}, "Lost, because no controller recreates them"), h("p", {}, found.lost.slice(0, SHOWN_MAX).join(", "), found.lost.length > SHOWN_MAX ? ` and ${found.lost.length - SHOWN_MAX} more` : ""));
  return parts;
}

function summary(lists, unchanged) {
  const changed = lists.filter(([items]) => items.length).map(([items, what], index) => `${index ? number(items.length) : plural(items.length, "Pod")} ${what}`);
  return `${changed.join(", ") || "No Pod scheduled, moved or lost"}, ${number(unchanged)} unchanged.`;
}

function pods(title, items, text) {
  if (!items.length) return null;
  return [h("h3", {}, title), h("ul", {}, items.slice(0, SHOWN_MAX).map((item) => h("li", {}, podLink(item.namespace, item.name), " ", text(item)))),
    items.length > SHOWN_MAX ? h("p", { class: "soft" }, `and ${items.length - SHOWN_MAX} more`) : null];
}
