// Requests to the server: the user's token, the change stream, queries and actions.

const KEY = "dray-token";
const BUSY_MILLISECONDS_MAX = 16;

export class Unauthorized extends Error {}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

// A token may be passed in the URL's fragment, which browsers do not send to servers; it is removed from the URL.
function takeTokenFromURL() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    setToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + "#/");
  } else if (location.search) {
    history.replaceState(null, "", location.pathname + (location.hash || "#/"));
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers, ...(token() ? { Authorization: `Bearer ${token()}` } : {}) };
  const response = await fetch(`data/${path}`, { ...options, headers, cache: "no-store" });
  if (response.status === 401) throw new Unauthorized((await message(response)) || "Unauthorized");
  if (!response.ok) throw new Error((await message(response)) || `the server responded with status ${response.status}`);
  return response;
}

async function message(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).message;
  } catch {
    return text.length < 200 ? text : "";
  }
}

export async function query(path, parameters = {}, signal = undefined) {
  return (await request(`${path}?${new URLSearchParams(parameters)}`, { signal })).json();
}

export function whoami() {
  return query("whoami");
}

export async function act(action, parameters) {
  const body = JSON.stringify({ action, ...parameters });
  return (await request("action", { method: "POST", headers: { "Content-Type": "application/json" }, body })).json();
}

let opened = null;

// Requests the stream while the page is still being set up; stream() reads the response.
export function openStream() {
  opened = request("stream");
  opened.catch(() => {});
}

// Calls onLine(line) for every line of the stream; returns when it ends.
export async function stream(onLine, onOpen) {
  const requested = opened ?? request("stream");
  opened = null;
  const response = await requested;
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    let began = performance.now();
    for (const line of lines) {
      if (line) onLine(JSON.parse(line));
      // Lets the browser draw what has come, before thousands of rows that the picture does not need.
      if (performance.now() - began > BUSY_MILLISECONDS_MAX) {
        await new Promise((resolve) => setTimeout(resolve));
        began = performance.now();
      }
    }
  }
}

// The page loads this module first, so that the server reads the cluster while the browser loads the other modules.
takeTokenFromURL();
openStream();
