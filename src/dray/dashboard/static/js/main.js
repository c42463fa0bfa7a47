// Entry point: authentication, routing between views, and rendering on changes.

import { Unauthorized, openStream, setToken, token, whoami } from "./api.js";
import { h, refreshAges, replace } from "./dom.js";
import { route } from "./links.js";
import { search } from "./search.js";
import { store } from "./store.js";
import { login } from "./views/login.js";
import { overviewView } from "./views/overview.js";

// Only the overview is needed for the first picture; the other modules are loaded after it, or when they are opened.
const MODULES = {
  claims: () => import("./views/claims.js"), decisions: () => import("./views/decisions.js"), device: () => import("./views/device.js"),
  namespaces: () => import("./views/namespaces.js"), nodes: () => import("./views/nodes.js"), pods: () => import("./views/pods.js"),
  timeline: () => import("./views/timeline.js"),
};
// The module and the export of each view.
const VIEWS = {
  nodes: ["nodes", "nodesView"], node: ["nodes", "nodeView"], device: ["device", "deviceView"], claims: ["claims", "claimsView"],
  claim: ["claims", "claimView"], pods: ["pods", "podsView"], pod: ["pods", "podView"], workload: ["pods", "workloadView"],
  namespaces: ["namespaces", "namespacesView"], quota: ["namespaces", "quotaView"], decisions: ["decisions", "decisionsView"],
  timeline: ["timeline", "timelineView"],
};
const NAV = [["", "Overview"], ["nodes", "Nodes"], ["pods", "Pods"], ["claims", "Claims"], ["namespaces", "Namespaces"], ["decisions", "Decisions"], ["timeline", "Timeline"]];
const PARENTS = { quota: "namespaces", device: "nodes", node: "nodes", claim: "claims", pod: "pods", workload: "pods" };
const REFRESH_MILLISECONDS = 10000;

const main = document.getElementById("main");
let current = null;
// Signing in again starts the stream again, and nothing else.
let started = false;
// Increases whenever another view is opened, so that one whose module comes late is not shown.
let opened = 0;

async function viewOf(name) {
  const [module, view] = VIEWS[name];
  return (await MODULES[module]())[view];
}

async function open() {
  const number = ++opened;
  const found = route();
  const name = found.name in VIEWS ? found.name : "";
  const view = name ? await viewOf(name) : overviewView;
  if (number !== opened) return;
  current?.close?.();
  current = view;
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
  if (!started) listen();
  started = true;
  open().catch((error) => replace(main, h("p", { class: "error" }, error.message)));
  return store.run((error) => { setToken(""); showLogin(error.message); });
}

function listen() {
  window.addEventListener("hashchange", async () => {
    if (!current) return;
    await open();
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
  });
  store.listen(() => {
    showConnection();
    current?.render();
    if (store.loaded) loadViews();
  });
  setInterval(() => { sampleUsage(); refreshAges(); current?.render(); }, REFRESH_MILLISECONDS);
}

let sampleUsage = () => {};
let loading = false;

// Fetches what the first picture did not need, so that other pages open at once.
async function loadViews() {
  if (loading) return;
  loading = true;
  await Promise.all(Object.values(MODULES).map((load) => load()));
  sampleUsage = (await MODULES.namespaces()).sampleUsage;
}

// No error before the user has entered a token.
function tokenError() {
  return token() ? "The token is not valid." : "";
}

function showLogin(message) {
  current?.close?.();
  current = null;
  opened++;
  replace(document.getElementById("nav"));
  replace(document.getElementById("search"));
  login(main, message, () => { openStream(); start(); });
}

start();
