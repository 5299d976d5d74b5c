// Two engines behind one interface: `theory(spec, ...)` and `runs(spec, ...)` answer with curves, in the browser or by the
// server. The browser holds one program, and follows every specification that differs from it in numbers only.

import { Gone, work } from "./api.js";
import { clone, kindOf, read } from "./state.js";

// Steps of all runs together beyond which they are left to the server: about ten seconds here.
const MOST_STEPS = 1e8;
const SHOWN = 64; // single runs of a curve
const [LOW, HIGH] = [0.1, 0.9];

const isPlain = (description, name) => description === name || (kindOf(description) === name && Object.keys(description).length === 1);

/** The server: every description of every specification. */
export class Server {
  theory(spec, options, asked) {
    return work("theory", spec, options, asked);
  }

  runs(spec, options, asked) {
    return work("simulate", spec, options, asked);
  }
}

/** The browser: `SaadSolla` and `OverlapSGD`, where there is a program; null elsewhere. */
export class Browser {
  constructor() {
    Object.assign(this, { worker: null, program: null, structure: "", asking: null, count: 0, waiting: new Map() });
  }

  /** The names of the numbers that the program takes as data, and their places in a specification. */
  get paths() {
    const names = Object.keys(this.program?.manifest.names ?? {}).filter((name) => name !== "d");
    return names.map((name) => [name, name === "noise" ? "problem.noise" : `training.${name}`]);
  }

  /** A specification without what may differ. */
  static structure(spec) {
    const rest = clone(spec);
    delete rest.title;
    if (rest.run) delete rest.run.descriptions;
    const walk = (value, name) => {
      if (Array.isArray(value)) return value.map((item) => walk(item, ""));
      if (value !== null && typeof value === "object") return Object.fromEntries(Object.entries(value).sort().map(([key, item]) => [key, walk(item, key)]));
      return ["learning_rate", "noise", "weight_decay", "momentum", "ratio"].includes(name) && typeof value === "number" && value > 0 ? "number" : value;
    };
    return JSON.stringify(walk(rest, ""));
  }

  /** The numbers by which a specification differs from that of the program; null where it differs in more. */
  settings(spec) {
    if (!this.program || Browser.structure(spec) !== this.structure) return null;
    const found = {};
    for (const [name, path] of this.paths) {
      const value = read(spec, path);
      if (typeof value === "number") found[name] = value;
    }
    // A number that is no data of the program must be the one that it was made with.
    const rest = (own) => this.paths.reduce((text, [, path]) => { const at = path.split("."); const last = at.pop(); const table = read(text, at.join(".")); if (typeof table?.[last] === "number") table[last] = 0; return text; }, clone(own));
    const same = (own) => JSON.stringify([rest(own).problem, rest(own).training]);
    return same(spec) === same(this.program.spec) ? found : null;
  }

  /** Get the program of a specification, unless it is there or on its way. */
  async prepare(spec) {
    const structure = Browser.structure(spec);
    if (typeof WebAssembly !== "object" || structure === this.structure) return;
    this.asking?.abort();
    const mine = (this.asking = new AbortController());
    const isReplaced = () => this.asking !== mine;
    Object.assign(this, { program: null, structure });
    document.body.dataset.engine = "preparing";
    try {
      const answer = await work("program", spec, { slot: "program" }, { signal: mine.signal });
      if (isReplaced()) return;
      await this.load(answer);
      if (isReplaced()) return;
      this.program = { ...answer, spec: clone(spec) };
      document.body.dataset.engine = "browser";
    } catch (error) {
      if (isReplaced()) return;
      // The structure is kept where the server refuses, so that nobody asks again; the reason is there to be read.
      if (error.name === "AbortError" || error instanceof Gone) this.structure = "";
      document.body.dataset.engine = `server: ${error.message}`;
    }
  }

  /** Give the worker a program, and wait until it is compiled. */
  load({ manifest, packed }) {
    if (!this.worker) {
      this.worker = new Worker("static/engine-worker.js");
      this.worker.onmessage = ({ data }) => this.waiting.get(data.id)?.(data);
      this.worker.onerror = ({ message }) => [...this.waiting.values()].forEach((answer) => answer({ kind: "error", message }));
    }
    const id = (this.count += 1);
    return new Promise((resolve, reject) => {
      this.waiting.set(id, ({ kind, message }) => {
        this.waiting.delete(id);
        if (kind === "ready") resolve();
        else reject(new Error(message));
      });
      this.worker.postMessage({ kind: "load", id, manifest, packed });
    });
  }

  /** Ask the worker; `on` sees every message until it returns something. Null where it fails, or another run came. */
  ask(message, on, signal) {
    const id = (this.count += 1);
    return new Promise((resolve, reject) => {
      const end = (act, value) => { this.waiting.delete(id); signal?.removeEventListener("abort", stop); act(value); };
      const stop = () => { this.worker.postMessage({ kind: "stop", id }); end(reject, new DOMException("cancelled", "AbortError")); };
      this.waiting.set(id, (data) => {
        const value = data.kind === "error" || data.kind === "stopped" ? null : on(data);
        if (value !== undefined) end(resolve, value);
      });
      if (signal?.aborted) return stop();
      signal?.addEventListener("abort", stop);
      this.worker.postMessage({ ...message, id });
    });
  }

  async theory(spec, { description }, { signal } = {}) {
    const [settings, { program }] = [this.settings(spec), this];
    if (!isPlain(description, "SaadSolla") || settings === null || !program.manifest.theory?.A) return null;
    const { times } = program;
    const data = await this.ask({ kind: "solve", settings, times }, (message) => message, signal);
    if (data === null || data.rows.some((value) => !Number.isFinite(value))) return null;
    const curve = this.curve(program, "SaadSolla", "theory", settings, times, [this.rows(data)]);
    const place = this.places(program.manifest).excess_risk[0];
    const error = this.rows({ ...data, rows: data.errors }).map((row) => (Number.isFinite(row[place]) ? row[place] : null));
    // Where averages are approximate, only the server knows by how much.
    const errorOf = program.manifest.theory.has_exact_averages ? "" : "the integration alone";
    return { curves: [{ ...curve, error, errorOf }] };
  }

  async runs(spec, { description }, { on = () => {}, signal } = {}) {
    const [settings, { program }] = [this.settings(spec), this];
    if (!isPlain(description, "OverlapSGD") || settings === null) return null;
    const { manifest, replicas, times } = program;
    const cell = manifest.cells[0];
    const unit = cell.time_per_rate * this.rate(program, settings);
    const steps = [...new Set(times.map((time) => Math.round(time / unit)))];
    if (replicas > cell.states.length || steps.at(-1) * replicas > MOST_STEPS) return null;
    const found = Array.from({ length: replicas }, () => []);
    const done = await this.ask({ kind: "run", theory: false, settings, replicas, first: 0, times: steps.map((step) => step * unit) }, (message) => {
      if (message.kind === "done") return true;
      this.rows(message).forEach((row, n) => found[n].push(row));
      on("progress", { fraction: message.index / steps.length });
      return undefined;
    }, signal);
    if (!done || found.some((rows) => rows.some((row) => row.some((value) => !Number.isFinite(value))))) return null;
    return { curves: [this.curve(program, "OverlapSGD", "simulation", settings, steps.map((step) => step * unit), found)] };
  }

  rows({ rows, width }) {
    return Array.from({ length: rows.length / width }, (_, n) => rows.subarray(n * width, (n + 1) * width));
  }

  rate({ manifest }, { learning_rate: stated }) {
    return stated ?? manifest.cells[0].numbers[manifest.names.learning_rate];
  }

  /** Where in a row each measured quantity stands, and its shape. */
  places(manifest) {
    const places = {};
    let place = 0;
    for (const [quantity, shape] of Object.entries(manifest.measured)) {
      places[quantity] = [place, shape];
      place += shape.reduce((a, b) => a * b, 1);
    }
    return places;
  }

  /** Rows of measured numbers of all replicas as the server says a curve. */
  curve(program, name, kind, settings, times, replicas) {
    const { manifest, P, engine } = program;
    const places = this.places(manifest);
    const part = (row, [at, [rows, columns]]) => {
      if (rows === undefined) return row[at];
      if (columns === undefined) return [...row.subarray(at, at + rows)];
      return Array.from({ length: rows }, (_, n) => [...row.subarray(at + n * columns, at + (n + 1) * columns)]);
    };
    const of = (rows, quantity) => rows.map((row) => part(row, places[quantity]));
    const excess = replicas.map((rows) => of(rows, "excess_risk"));
    const over = (act, all) => times.map((_, n) => act(all.map((values) => values[n])));
    const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
    const at = (share) => (values) => {
      const sorted = values.toSorted((a, b) => a - b);
      const position = share * (sorted.length - 1);
      const low = Math.floor(position);
      return sorted[low] + (position - low) * ((sorted[low + 1] ?? sorted[low]) - sorted[low]);
    };
    const several = replicas.length > 1;
    const cell = manifest.cells[0];
    const unit = cell.time_per_rate * this.rate(program, settings);
    return {
      name, kind, replicas: replicas.length, d: cell.d, time: times, samples: times.map((time) => time / unit),
      excess_risk: over(mean, excess), risk: over(mean, replicas.map((rows) => of(rows, "risk"))),
      low: several ? over(at(LOW), excess) : null, high: several ? over(at(HIGH), excess) : null, error: null,
      runs: excess.slice(0, SHOWN), Q: of(replicas[0], "Q"), M: of(replicas[0], "M"), a: of(replicas[0], "a"), P,
      status: replicas.map(() => "done"), engine: kind === "theory" ? engine : "",
    };
  }
}

/** The browser where it can, else the server. */
export class Engines {
  constructor(browser = new Browser(), server = new Server()) {
    Object.assign(this, { browser, server, structure: "", text: "" });
  }

  /** A specification is looked at: when its numbers begin to move, the browser gets its program. */
  look(spec) {
    const [structure, text] = [Browser.structure(spec), JSON.stringify(spec)];
    if (structure === this.structure && text !== this.text) this.browser.prepare(spec);
    Object.assign(this, { structure, text });
  }

  theory = (spec, options, asked) => this.first("theory", spec, options, asked);

  runs = (spec, options, asked) => this.first("runs", spec, options, asked);

  async first(kind, spec, options, asked) {
    const own = await this.browser[kind](spec, options, asked);
    if (own === null) return this.server[kind](spec, options, asked);
    asked?.on?.("result", own);
    return own;
  }

  /** The runs of simulations that the browser can follow, before anybody asks the server. */
  async atOnce(spec, descriptions, { on, signal }) {
    for (const description of descriptions) {
      const own = await this.browser.runs(spec, { description }, { signal });
      if (own !== null) on(own);
    }
  }
}
