// Entry point: authentication, routing between views, and rendering on changes.

import { Unauthorized, setToken, takeTokenFromURL, token, whoami } from "./api.js";
import { h, replace } from "./dom.js";
import { store } from "./store.js";
import { claimsView, claimView } from "./views/claims.js";
import { deviceView } from "./views/device.js";
import { login } from "./views/login.js";
import { mapView } from "./views/map.js";
import { namespacesView, sampleUsage } from "./views/namespaces.js";
import { podsView, podView } from "./views/pods.js";

const VIEWS = { "": mapView, device: deviceView, claims: claimsView, claim: claimView, pods: podsView, pod: podView, namespaces: namespacesView };
const NAV = [["", "Devices"], ["claims", "Claims"], ["pods", "Pods"], ["namespaces", "Namespaces"]];
const PARENTS = { device: "", claim: "claims", pod: "pods" };

const main = document.getElementById("main");
let current = null;

function route() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { name: name in VIEWS ? name : "", rest };
}

function open() {
  const { name, rest } = route();
  current = VIEWS[name];
  current.open(main, rest);
  document.title = `${current.title === "Devices" ? "Dray" : `${rest.at(-1) ?? current.title} · Dray`}`;
  const active = PARENTS[name] ?? name;
  replace(document.getElementById("nav"), NAV.map(([key, text]) => h("a", { href: `#/${key}`, "aria-current": key === active ? "page" : null }, text)));
}

function showConnection() {
  const live = document.getElementById("live");
  const loading = ["Node", "DeviceTaintRule", "ResourceSlice", "ResourceClaim", "Pod"].filter((kind) => !store.synced.has(kind) && !store.unavailable.has(kind));
  live.className = store.connected ? "live" : "live down";
  const hidden = [...store.unavailable.keys()];
  const note = hidden.length ? ` · not shown: ${hidden.join(", ")}` : "";
  const text = store.connected ? (loading.length ? "loading…" : `live${note}`) : `disconnected: ${store.failure || "connecting…"}`;
  if (live.textContent !== text) live.textContent = text;
  live.title = [...store.unavailable.entries()].map(([kind, message]) => `${kind}: ${message}`).join("\n");
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
  open();
  window.addEventListener("hashchange", () => { open(); scrollTo(0, 0); main.focus({ preventScroll: true }); });
  store.listen(() => {
    showConnection();
    sampleUsage();
    current?.render();
  });
  setInterval(() => { sampleUsage(); current?.render(); }, 10000);
  store.run((error) => { setToken(""); showLogin(error.message); });
}

// No error before the user has entered a token.
function tokenError() {
  return token() ? "The token is not valid." : "";
}

function showLogin(message) {
  replace(document.getElementById("nav"));
  login(main, message, start);
}

takeTokenFromURL();
start();
