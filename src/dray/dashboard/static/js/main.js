// Entry point: authentication, routing between views, and rendering on changes.

import { Unauthorized, openStream, setToken, token, whoami } from "./api.js";
import { h, refreshAges, replace } from "./dom.js";
import { route } from "./links.js";
import { search } from "./search.js";
import { store } from "./store.js";
import { claimsView, claimView } from "./views/claims.js";
import { decisionsView } from "./views/decisions.js";
import { deviceView } from "./views/device.js";
import { login } from "./views/login.js";
import { namespacesView, quotaView, sampleUsage } from "./views/namespaces.js";
import { nodesView, nodeView } from "./views/nodes.js";
import { overviewView } from "./views/overview.js";
import { podsView, podView, workloadView } from "./views/pods.js";
import { timelineView } from "./views/timeline.js";

const VIEWS = {
  "": overviewView, nodes: nodesView, node: nodeView, device: deviceView, claims: claimsView, claim: claimView, pods: podsView, pod: podView,
  workload: workloadView, namespaces: namespacesView, quota: quotaView, decisions: decisionsView, timeline: timelineView,
};
const NAV = [["", "Overview"], ["nodes", "Nodes"], ["pods", "Pods"], ["claims", "Claims"], ["namespaces", "Namespaces"], ["decisions", "Decisions"], ["timeline", "Timeline"]];
const PARENTS = { quota: "namespaces", device: "nodes", node: "nodes", claim: "claims", pod: "pods", workload: "pods" };
const REFRESH_MILLISECONDS = 10000;

const main = document.getElementById("main");
let current = null;
// Signing in again starts the stream again, and nothing else.
let started = false;

function open() {
  const found = route();
  const name = found.name in VIEWS ? found.name : "";
  current?.close?.();
  current = VIEWS[name];
  current.open(main, found.rest);
  document.title = name ? `${found.rest.at(-1) ?? current.title} · Dray` : "Dray";
  const active = PARENTS[name] ?? name;
  const nav = document.getElementById("nav");
  replace(nav, NAV.map(([key, text]) => h("a", { href: `#/${key}`, "aria-current": key === active ? "page" : null }, text)));
  // On a phone the pages are a row that scrolls.
  const link = nav.querySelector("[aria-current]");
  nav.scrollLeft = link ? link.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2 : 0;
}

function showConnection() {
  const live = document.getElementById("live");
  live.className = store.connected ? "live" : "live down";
  const hidden = [...store.unavailable].filter(([, message]) => message !== "not served").map(([kind]) => kind);
  const note = hidden.length ? ` · not shown: ${hidden.join(", ")}` : "";
  const text = store.connected ? (store.loaded ? `live${note}` : "loading…") : `disconnected: ${store.failure || "connecting…"}`;
  if (live.textContent !== text) live.textContent = text;
  live.title = [...store.unavailable].map(([kind, message]) => `${kind}: ${message}`).join("\n");
}

async function start() {
  try {
    const { user } = await whoami();
    replace(document.getElementById("who"), user.username);
  } catch (error) {
    if (error instanceof Unauthorized) return showLogin(error.message === "Unauthorized" ? tokenError() : error.message);
    replace(main, h("p", { class: "error" }, error.message));
    return setTimeout(start, 2000);
  }
  replace(document.getElementById("search"), search());
  open();
  if (!started) listen();
  started = true;
  return store.run((error) => { setToken(""); showLogin(error.message); });
}

function listen() {
  window.addEventListener("hashchange", () => {
    if (!current) return;
    open();
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  });
  store.listen(() => {
    showConnection();
    current?.render();
  });
  setInterval(() => { sampleUsage(); refreshAges(); current?.render(); }, REFRESH_MILLISECONDS);
}

// No error before the user has entered a token.
function tokenError() {
  return token() ? "The token is not valid." : "";
}

function showLogin(message) {
  current?.close?.();
  current = null;
  replace(document.getElementById("nav"));
  replace(document.getElementById("search"));
  login(main, message, () => { openStream(); start(); });
}

start();
