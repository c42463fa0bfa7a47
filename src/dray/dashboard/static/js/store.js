// Cache of all objects that the user can read, updated by the change stream; notifies listeners at most once per frame.

import { stream, Unauthorized } from "./api.js";

const RETRY_SECONDS = [1, 2, 5, 10];
const SAMPLE_MILLISECONDS = 5000;
const SAMPLES_MAX = 720;
const HISTORY_MAX = 50;

class Store {
  constructor() {
    this.kinds = new Map();
    // kind -> why it cannot be read.
    this.unavailable = new Map();
    this.synced = new Set();
    this.connected = false;
    this.failure = "";
    // device key -> allocations and deallocations since this page was opened.
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

  // Returns the cached result of a computation over all objects; computes it again after a change.
  memo(name, compute) {
    const cached = this._memo.get(name);
    if (cached && cached.version === this.version) return cached.value;
    const value = compute(this);
    this._memo.set(name, { version: this.version, value });
    return value;
  }

  async run(onUnauthorized) {
    for (;;) {
      try {
        await stream((line) => this._onLine(line), () => this._onOpen());
        this.failure = this.failure || "the server closed the connection";
      } catch (error) {
        if (error instanceof Unauthorized) return onUnauthorized(error);
        this.failure = error.message;
      }
      this.connected = false;
      this._changed();
      const seconds = RETRY_SECONDS[Math.min(this._retries++, RETRY_SECONDS.length - 1)];
      await new Promise((resolve) => setTimeout(resolve, seconds * 1000));
    }
  }

  _onOpen() {
    this.connected = true;
    this.failure = "";
    // Deletions during a disconnect are not sent: list everything again, and show the old objects until a kind is synced.
    this._listed = new Map();
    this._current = new Set();
    this._changed();
  }

  _onLine(line) {
    if (line.type === "HEARTBEAT") return;
    if (line.type === "ERROR") this._onError(line.message);
    else if (line.type === "UNAVAILABLE") this.unavailable.set(line.kind, line.message);
    else if (line.type === "SYNCED") this._onSynced(line.kind);
    else this._onObject(line);
    this._changed();
  }

  // The stream ends with this line; run() connects again.
  _onError(message) {
    this.connected = false;
    this.failure = message;
  }

  _onSynced(kind) {
    this._retries = 0;
    this.kinds.set(kind, this._listed.get(kind) ?? new Map());
    this._listed.delete(kind);
    this.synced.add(kind);
    this._current.add(kind);
    this.unavailable.delete(kind);
  }

  _onObject({ type, kind, object }) {
    const listing = !this._current.has(kind);
    if (listing && !this._listed.has(kind)) this._listed.set(kind, new Map());
    const objects = (listing ? this._listed : this.kinds).get(kind);
    const key = `${object.metadata.namespace ?? ""}/${object.metadata.name}`;
    if (!listing && kind === "ResourceClaim") this._recordAllocation(objects.get(key), type === "DELETED" ? null : object);
    if (type === "DELETED") objects.delete(key);
    else objects.set(key, object);
  }

  // Records which devices a claim gained or lost.
  _recordAllocation(before, after) {
    const held = (claim) => new Set((claim?.status?.allocation?.devices?.results ?? []).map((r) => `${r.driver}/${r.pool}/${r.device}`));
    const [old, now] = [held(before), held(after)];
    const claim = after ?? before;
    const name = `${claim.metadata.namespace}/${claim.metadata.name}`;
    for (const key of now) if (!old.has(key)) this._record(key, `allocated to claim ${name}`);
    for (const key of old) if (!now.has(key)) this._record(key, `released by claim ${name}`);
  }

  _record(key, what) {
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
    const notify = () => {
      this._scheduled = false;
      for (const listener of this._listeners) listener();
    };
    // Hidden pages get no animation frames.
    if (document.hidden) setTimeout(notify, 1000);
    else requestAnimationFrame(notify);
  }
}

export const store = new Store();
