// Everything the reader may see, kept current by the stream; tells its listeners at most once a frame.

import { stream, Refused } from "./api.js";

const RETRY_SECONDS = [1, 2, 5, 10];
const SAMPLE_MILLISECONDS = 5000;
const SAMPLES_MAX = 720;
const HISTORY_MAX = 50;

class Store {
  constructor() {
    this.kinds = new Map();
    this.refused = new Map();
    this.synced = new Set();
    this.connected = false;
    this.failure = "";
    // device key -> what was seen to happen to it while this page was open.
    this.history = new Map();
    this.samples = new Map();
    this._listeners = new Set();
    this._scheduled = false;
    this._retries = 0;
    this._memo = new Map();
    this.version = 0;
  }

  of(kind) {
    return [...(this.kinds.get(kind)?.values() ?? [])];
  }

  get(kind, namespace, name) {
    return this.kinds.get(kind)?.get(`${namespace}/${name}`);
  }

  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  // The result of a computation over everything, until something changes.
  memo(name, compute) {
    const known = this._memo.get(name);
    if (known && known.version === this.version) return known.value;
    const value = compute(this);
    this._memo.set(name, { version: this.version, value });
    return value;
  }

  async run(onRefused) {
    for (;;) {
      try {
        await stream((line) => this._hear(line), () => this._opened());
        this.failure = "the server closed the connection";
      } catch (error) {
        if (error instanceof Refused) return onRefused(error);
        this.failure = error.message;
      }
      this.connected = false;
      this._changed();
      const seconds = RETRY_SECONDS[Math.min(this._retries++, RETRY_SECONDS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    }
  }

  _opened() {
    this.connected = true;
    this._retries = 0;
    // What went while nobody listened is not told of: begin anew, and show the old until all of the new is there.
    this._fresh = new Map();
    this._current = new Set();
    this._changed();
  }

  _hear(line) {
    if (line.type === "ALIVE") return;
    if (line.type === "REFUSED") this.refused.set(line.kind, line.message);
    else if (line.type === "SYNCED") this._take(line.kind);
    else this._object(line);
    this._changed();
  }

  _take(kind) {
    this.kinds.set(kind, this._fresh.get(kind) ?? new Map());
    this._fresh.delete(kind);
    this.synced.add(kind);
    this._current.add(kind);
    this.refused.delete(kind);
  }

  _object({ type, kind, object }) {
    const arriving = !this._current.has(kind);
    if (arriving && !this._fresh.has(kind)) this._fresh.set(kind, new Map());
    const objects = (arriving ? this._fresh : this.kinds).get(kind);
    const key = `${object.metadata.namespace ?? ""}/${object.metadata.name}`;
    if (!arriving && kind === "ResourceClaim") this._note(objects.get(key), type === "GONE" ? null : object);
    if (type === "GONE") objects.delete(key);
    else objects.set(key, object);
  }

  // Who got a device, and who gave it back.
  _note(before, after) {
    const held = (claim) => new Set((claim?.status?.allocation?.devices?.results ?? []).map((r) => `${r.driver}/${r.pool}/${r.device}`));
    const [old, now] = [held(before), held(after)];
    const claim = after ?? before;
    const name = `${claim.metadata.namespace}/${claim.metadata.name}`;
    for (const key of now) if (!old.has(key)) this._remember(key, `given to claim ${name}`);
    for (const key of old) if (!now.has(key)) this._remember(key, `given back by claim ${name}`);
  }

  _remember(key, what) {
    const list = this.history.get(key) ?? [];
    list.unshift({ at: new Date().toISOString(), what });
    this.history.set(key, list.slice(0, HISTORY_MAX));
  }

  sample(name, value) {
    const list = this.samples.get(name) ?? [];
    const last = list[list.length - 1];
    if (last && Date.now() - last.at < SAMPLE_MILLISECONDS) last.value = value;
    else list.push({ at: Date.now(), value });
    this.samples.set(name, list.slice(-SAMPLES_MAX));
    return this.samples.get(name);
  }

  _changed() {
    this.version++;
    if (this._scheduled) return;
    this._scheduled = true;
    const tell = () => {
      this._scheduled = false;
      for (const listener of this._listeners) listener();
    };
    // Hidden pages get no frames, but must not fall behind.
    if (document.hidden) setTimeout(tell, 1000);
    else requestAnimationFrame(tell);
  }
}

export const store = new Store();
