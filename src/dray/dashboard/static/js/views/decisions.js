// What the scheduler decided: the chosen node with its scores and runners-up, or why no node was feasible.

import { query } from "../api.js";
import { h, replace, replaceOn, since, table } from "../dom.js";
import { Filters, matches } from "../filters.js";
import { plainReason, plural } from "../format.js";
import { joined, link, parameter, podLink, tag } from "../links.js";
import { Rows } from "../rows.js";

const REFRESH_MILLISECONDS = 5000;
const RESULTS = ["Scheduled", "Unschedulable", "SchedulerError"];

export const decisionsView = {
  title: "Decisions",

  open(main) {
    this.all = [];
    this.filters = new Filters([{ name: "result", label: "Result" }, { name: "ns", label: "Namespace" }], () => this.render(), "Pod, node or reason");
    this.rows = new Rows("Decisions", [
      { title: "Pod", cell: (row) => podLink(row.namespace, row.pod), grow: true },
      { title: "Result", cell: (row) => tag(row.result.toLowerCase()) },
      { title: "Node", cell: (row) => (row.node ? link(["node", row.node], row.node) : ""), wide: true },
      { title: "Why", cell: (row) => h("span", { title: why(row) }, why(row)), detail: true, grow: true },
      { title: "Took", cell: (row) => `${row.milliseconds.toFixed(1)} ms`, number: true, wide: true },
      { title: "Age", cell: (row) => since(row.time), short: true },
    ], "No decisions.");
    this.note = h("div", {});
    replace(main, h("div", { class: "head" }, h("h1", {}, "Decisions"), this.rows.note), this.note, this.filters.element, this.rows.element);
    this.render();
    this.load();
    this.timer = setInterval(() => this.load(), REFRESH_MILLISECONDS);
  },

  close() {
    clearInterval(this.timer);
    this.rows.close();
  },

  async load() {
    try {
      const { decisions, recorded, hidden } = await query("decisions");
      const known = new Map(this.all.map((row) => [`${row.key}/${row.time}`, row]));
      this.all = decisions.map((row) => {
        const key = `${row.uid}/${row.result}`;
        return known.get(`${key}/${row.time}`) ?? { key, ...row };
      });
      const text = recorded ? (hidden ? `${plural(hidden, "decision")} hidden: you may not list those Pods.` : "") : "No scheduler runs in the process of this API server, so that its decisions are not known here.";
      replaceOn(this.note, text, () => (text ? h("p", { class: "notice" }, text) : null));
    } catch (error) {
      replaceOn(this.note, error.message, () => h("p", { class: "notice" }, error.message));
    }
    this.render();
  },

  render() {
    this.filters.options("result", RESULTS);
    this.filters.options("ns", [...new Set(this.all.map((row) => row.namespace))].sort());
    const [result, namespace] = ["result", "ns"].map(parameter);
    const words = this.filters.words;
    this.rows.update(this.all.filter((row) => (!result || row.result === result) && (!namespace || row.namespace === namespace) && matches(words, `${row.namespace}/${row.pod} ${row.node} ${row.message}`)), this.all.length, "decision");
  },
};

function why({ evaluation, message }) {
  if (!evaluation) return message;
  const [first, second] = evaluation.scores;
  if (first) return `${evaluation.feasible} of ${plural(evaluation.nodeCount, "node")} feasible; score ${first.total}${second ? `, then ${second.node} with ${second.total}` : ""}`;
  if (evaluation.feasible) return `${evaluation.feasible} of ${plural(evaluation.nodeCount, "node")} feasible`;
  return evaluation.rejections.map((item) => `${plural(item.count, "node")}: ${item.reasons.map(plainReason).join(", ")}`).join("; ") || message;
}

// The last decisions about a Pod, in full.
export async function podDecisions(uid) {
  const { decisions } = await query("decisions");
  return decisions.filter((item) => item.uid === uid).map((item) => h("div", {},
    h("p", {}, tag(item.result.toLowerCase()), " ", item.node ? link(["node", item.node], item.node) : "", " ", since(item.time), h("span", { class: "soft" }, ` · attempt ${item.attempts}, ${item.milliseconds.toFixed(1)} ms`)),
    scores(item.evaluation), rejections(item.evaluation)));
}

function scores(evaluation) {
  if (!evaluation?.scores.length) return null;
  const plugins = [...new Set(evaluation.scores.flatMap((item) => Object.keys(item.byPlugin)))];
  return table(["Node", "Score", ...plugins], evaluation.scores.map((item, index) => [index ? item.node : h("b", {}, item.node), String(item.total), ...plugins.map((name) => String(item.byPlugin[name] ?? 0))]));
}

function rejections(evaluation) {
  if (!evaluation?.rejections.length) return null;
  return h("ul", {}, evaluation.rejections.map((item) => h("li", {}, `${plural(item.count, "node")}: `, joined(item.reasons.map(plainReason), "; "), h("span", { class: "soft" }, ` ${item.plugin}${item.example ? `, such as ${item.example}` : ""}`))));
}
