// The way to the server: the reader's credentials, one stream of everything, and two questions.

const KEY = "dray-token";

export class Refused extends Error {}

export function token() {
  return sessionStorage.getItem(KEY) ?? "";
}

export function setToken(value) {
  if (value) sessionStorage.setItem(KEY, value);
  else sessionStorage.removeItem(KEY);
}

// A token may come in the address, behind the #, where no server and no log sees it; it does not stay there.
export function takeTokenFromAddress() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    setToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + "#/");
  } else if (location.search) {
    history.replaceState(null, "", location.pathname + (location.hash || "#/"));
  }
}

async function ask(path, signal) {
  const headers = token() ? { Authorization: `Bearer ${token()}` } : {};
  const answer = await fetch(`data/${path}`, { headers, signal, cache: "no-store" });
  if (answer.status === 401 || answer.status === 403) throw new Refused((await message(answer)) || "Unauthorized");
  if (!answer.ok) throw new Error((await message(answer)) || `the server answered ${answer.status}`);
  return answer;
}

async function message(answer) {
  try {
    return (await answer.json()).message;
  } catch {
    return "";
  }
}

export async function whoami() {
  return (await ask("whoami")).json();
}

export async function classes() {
  return (await ask("classes")).json();
}

export async function explain(kind, namespace, name, signal) {
  const query = new URLSearchParams({ kind, namespace, name });
  return (await ask(`explain?${query}`, signal)).json();
}

// Calls hear(line) for every line of the stream; returns when it ends.
export async function stream(hear, opened, signal) {
  const answer = await ask("stream", signal);
  opened();
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) hear(JSON.parse(line));
  }
}
