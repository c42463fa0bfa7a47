// The server's tables, updated by the change stream; notifies listeners at most once per frame.

import { stream, Unauthorized } from "./api.js";

const RETRY_SECONDS = [1, 2, 5, 10];
const SAMPLE_MILLISECONDS = 5000;
const SAMPLES_MAX = 720;
const PICTURE_KINDS = ["DeviceClass", "ResourceSlice"];
const DEVICE_KINDS = ["DeviceClass", "DeviceTaintRule", "ResourceSlice", "ResourceClaim"];

// A physical device: what it has in common with others is in the shape of its pool.
class Card {
  constructor(pool, position, fixed, state) {
    this.pool_ = pool;
    this.position = position;
    [this.name, this.classes, this.model, this.published] = fixed;
    this.state = state;
    this.used = pool.used[position] ?? (state === "used" ? 1 : 0);
  }

  get key() { return `${this.pool_.key}/${this.name}`; }
  get driver() { return this.pool_.driver; }
  get pool() { return this.pool_.pool; }
  get node() { return this.pool_.node; }
  get note() { return this.pool_.notes[this.position] ?? ""; }
  // The allocated parts as [device, fraction].
  get segments() { return this.pool_.segments[this.position] ?? (this.used ? [[this.name, this.used]] : []); }
}

class Store {
  constructor() {
    this.columns = {};
    this.states = {};
    // table -> key -> row as an object.
    this.tables = {};
    this.versions = {};
    // kind -> why it cannot be read.
    this.unavailable = new Map();
    this.synced = new Set();
    this.connected = false;
    this.failure = "";
    this.samples = new Map();
    this._listeners = new Set();
    this._scheduled = false;
    this._retries = 0;
    this._memo = new Map();
  }

  table(name) {
    return this.tables[name] ?? EMPTY;
  }

  rows(name) {
    return [...this.table(name).values()];
  }

  get(name, key) {
    return this.table(name).get(key);
  }

  // Whether all devices have come; their states may still be "loading".
  get pictured() {
    return this.listed(PICTURE_KINDS);
  }

  get loaded() {
    return this.listed(DEVICE_KINDS);
  }

  // Whether all objects of the kinds have come, as far as the user may read them.
  listed(kinds) {
    return kinds.every((kind) => this.synced.has(kind) || this.unavailable.has(kind));
  }

  listen(listener) {
    this._listeners.add(listener);
    return () => this._listeners.delete(listener);
  }

  // Returns the cached result of a computation; computes it again after a change of one of the tables.
  memo(name, tables, compute) {
    const version = tables.map((table) => this.versions[table] ?? 0).join();
    const cached = this._memo.get(name);
    if (cached && cached.version === version) return cached.value;
    const value = compute(this);
    this._memo.set(name, { version, value });
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
    this._changed();
  }

  _onLine(line) {
    if (line.type === "HEARTBEAT") return;
    if (line.type === "ERROR") this._onError(line.message);
    else if (line.type === "COLUMNS") this._onColumns(line);
    else if (line.type === "UNAVAILABLE") this._onUnavailable(line);
    else if (line.type === "SYNCED") this._onSynced(line.kind);
    else this._onRows(line);
    this._changed();
  }

  // The stream ends with this line; run() connects again.
  _onError(message) {
    this.connected = false;
    this.failure = message;
  }

  // Everything is sent again after a disconnect; what is shown until then is the state before it.
  _onColumns({ tables, states }) {
    this.columns = tables;
    this.states = states;
    this._fresh = {};
    this._missing = new Set([...DEVICE_KINDS, "Node", "Pod"]);
    this.unavailable.clear();
  }

  _onUnavailable({ kind, message }) {
    this.unavailable.set(kind, message);
    this._onListed(kind);
  }

  _onSynced(kind) {
    this._retries = 0;
    this.synced.add(kind);
    this._onListed(kind);
  }

  _onListed(kind) {
    this._missing.delete(kind);
    if (this._fresh && !this._missing.size) this._useFresh();
  }

  _useFresh() {
    this.tables = this._fresh;
    this._fresh = null;
    for (const name of Object.keys(this.columns)) this._touch(name);
  }

  _onRows({ table, rows, removed }) {
    // At first there is nothing to keep: rows are shown as they come.
    if (this._fresh && !this.synced.size) this._useFresh();
    const tables = this._fresh ?? this.tables;
    const known = (tables[table] ??= new Map());
    const columns = this.columns[table];
    for (const key of removed) known.delete(key);
    for (const key in rows) {
      const row = object(key, columns, rows[key]);
      if (table === "pools") row.cards = this._cards(row, tables.shapes.get(String(row.shape)).cards);
      known.set(key, row);
    }
    if (!this._fresh) this._touch(table);
  }

  _cards(pool, shape) {
    return shape.map((fixed, position) => new Card(pool, position, fixed, this.states[pool.states[position]]));
  }

  _touch(table) {
    this.versions[table] = (this.versions[table] ?? 0) + 1;
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

function object(key, columns, values) {
  const row = { key };
  for (let index = 0; index < columns.length; index++) row[columns[index]] = values[index];
  return row;
}

const EMPTY = new Map();

export const store = new Store();
