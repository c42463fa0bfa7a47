// Requests to the server: the user's token, the change stream, and queries.

const KEY = "dray-token";

export class Unauthorized extends Error {}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

// A token may be passed in the URL's fragment, which browsers do not send to servers; it is removed from the URL.
export function takeTokenFromURL() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    setToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + "#/");
  } else if (location.search) {
    history.replaceState(null, "", location.pathname + (location.hash || "#/"));
  }
}

async function get(path, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const response = await fetch(`data/${path}`, { headers, signal, cache: "no-store" });
  if (response.status === 401 || response.status === 403) throw new Unauthorized((await message(response)) || "Unauthorized");
  if (!response.ok) throw new Error((await message(response)) || `the server responded with status ${response.status}`);
  return response;
}

async function message(response) {
  try {
    return (await response.json()).message;
  } catch {
    return "";
  }
}

export async function whoami() {
  return (await get("whoami")).json();
}

export async function classes() {
  return (await get("classes")).json();
}

export async function explain(kind, namespace, name, signal) {
  const query = new URLSearchParams({ kind, namespace, name });
  return (await get(`explain?${query}`, signal)).json();
}

// Calls onLine(line) for every line of the stream; returns when it ends.
export async function stream(onLine, onOpen, signal) {
  const response = await get("stream", signal);
  onOpen();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) onLine(JSON.parse(line));
  }
}
