// Puts the page together: who reads, which view is open, and when it is drawn again.

import { Refused, setToken, takeTokenFromAddress, token, whoami } from "./api.js";
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

function showLive() {
  const live = document.getElementById("live");
  const waiting = ["Node", "DeviceTaintRule", "ResourceSlice", "ResourceClaim", "Pod"].filter((kind) => !store.synced.has(kind) && !store.refused.has(kind));
  live.className = store.connected ? "live" : "live down";
  const hidden = [...store.refused.keys()];
  const note = hidden.length ? ` · not shown: ${hidden.join(", ")}` : "";
  const text = store.connected ? (waiting.length ? "reading…" : `live${note}`) : `not connected: ${store.failure || "connecting…"}`;
  if (live.textContent !== text) live.textContent = text;
  live.title = [...store.refused.entries()].map(([kind, message]) => `${kind}: ${message}`).join("\n");
}

async function begin() {
  try {
    const { user } = await whoami();
    replace(document.getElementById("who"), user.username);
  } catch (error) {
    if (error instanceof Refused) return askWho(error.message === "Unauthorized" ? unknownToken() : error.message);
    replace(main, h("p", { class: "error" }, error.message));
    return setTimeout(begin, 2000);
  }
  open();
  window.addEventListener("hashchange", () => { open(); scrollTo(0, 0); main.focus({ preventScroll: true }); });
  store.listen(() => {
    showLive();
    sampleUsage();
    current?.render();
  });
  setInterval(() => { sampleUsage(); current?.render(); }, 10000);
  store.run((error) => { setToken(""); askWho(error.message); });
}

// Nobody is told off who has not said anything yet.
function unknownToken() {
  return token() ? "The server does not know this token." : "";
}

function askWho(message) {
  replace(document.getElementById("nav"));
  login(main, message, begin);
}

takeTokenFromAddress();
begin();
