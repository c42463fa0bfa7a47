// Device usage and quotas by namespace, with usage over time since the page was opened.

import { h, meter, replace, table } from "../dom.js";
import { quantity, usageByNamespace } from "../model.js";
import { store } from "../store.js";

const WIDTH = 200;
const HEIGHT = 40;

export const namespacesView = {
  title: "Namespaces",

  open(main) {
    this.body = h("div", {});
    replace(main, h("h1", {}, "Namespaces"), this.body);
    this.render();
  },

  render() {
    const usage = usageByNamespace(store.of("ResourceClaim"));
    const quotas = store.of("ResourceQuota");
    const rows = [...usage.values()].sort((a, b) => b.devices - a.devices);
    const total = rows.reduce((sum, row) => sum + row.devices, 0);
    replace(this.body,
      table(["Namespace", "Devices", "Claims", "Pending claims", "Device-hours", "Devices over time"], rows.map((row) => [
        row.namespace, meter(row.devices, total, `devices held by ${row.namespace}`), row.claims, row.pending, row.hours.toFixed(1), spark(store.samples.get(`ns/${row.namespace}`) ?? [], row.namespace),
      ])),
      h("h2", {}, "Quotas"),
      table(["Namespace", "Quota", "Resource", "Used"], quotas.flatMap((quota) => Object.entries(quota.status?.hard ?? quota.spec?.hard ?? {}).map(([name, hard]) => {
        const used = quota.status?.used?.[name] ?? "0";
        return [quota.metadata.namespace, quota.metadata.name, name, h("div", {}, meter(quantity(used), quantity(hard), `${name} used`), h("small", { class: "soft" }, `${used} of ${hard}`))];
      }))));
  },
};

// Called periodically, whichever view is open.
export function sampleUsage() {
  for (const row of usageByNamespace(store.of("ResourceClaim")).values()) store.sample(`ns/${row.namespace}`, row.devices);
}

function spark(samples, name) {
  if (samples.length < 2) return h("span", { class: "soft" }, "collecting data…");
  const most = Math.max(...samples.map((sample) => sample.value), 1);
  const [first, last] = [samples[0].at, samples[samples.length - 1].at];
  const points = samples.map((sample) => `${((sample.at - first) / Math.max(last - first, 1)) * WIDTH},${HEIGHT - (sample.value / most) * (HEIGHT - 4) - 2}`).join(" ");
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "spark");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `Devices held by ${name} since this page was opened; maximum: ${most}, now: ${samples[samples.length - 1].value}`);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  line.setAttribute("points", points);
  svg.append(line);
  return svg;
}
