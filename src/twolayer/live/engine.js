"use strict";
/**
 * The engine of live figures: runs the WebAssembly program of a problem, in a worker of a page or in node.
 *
 * It knows no equation. A program (module and manifest, see twolayer.live.live_programs) brings the step of SGD, what is
 * measured of a state, the right-hand side of the theory, and the coefficients of the method that integrates it.
 * All of the engine is one function, so that a page can start a worker from its text without another request.
 */
function twolayerEngine() {
  const BYTES = 8;
  const PAGE = 65536;
  // Steps are taken in multiples of what the module draws at once, for about this many milliseconds between two looks
  // at the messages.
  const AHEAD = 32;
  const SLICE = 10;
  // How much less accurate solutions are by which the error is found, and by how much their starts are moved.
  const [LOOSER, NUDGE] = [100, 1e-15];

  /** Unpack a module from base64 of gzip. */
  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  /** A program with numbers of its own in the memory of one instance of the module. */
  class Instance {
    constructor(module, manifest, cell, settings) {
      this.manifest = manifest;
      this.cell = manifest.cells[cell];
      this.exports = new WebAssembly.Instance(module, { Math }).exports;
      this.numbers = Float64Array.from(this.cell.numbers);
      for (const [name, value] of Object.entries(settings)) {
        if (!(name in manifest.names)) throw new Error(`The program has no number named ${name}.`);
        this.numbers[manifest.names[name]] = value;
      }
      this.free = manifest.layout.free;
      new Float64Array(this.exports.memory.buffer).set(this.numbers, manifest.layout.numbers / BYTES);
    }

    /** Reserve memory and return its address. */
    reserve(bytes) {
      const address = this.free;
      this.free = Math.ceil((address + bytes) / 16) * 16;
      const missing = Math.ceil(this.free / PAGE) - this.exports.memory.buffer.byteLength / PAGE;
      if (missing > 0) this.exports.memory.grow(missing);
      return address;
    }

    floats(address, count) {
      return new Float64Array(this.exports.memory.buffer, address, count);
    }

    /** The time of one step at the learning rate of this instance. */
    get timePerStep() {
      return this.cell.time_per_rate * this.numbers[this.manifest.names.learning_rate];
    }

    /** How many numbers are measured: those that have a name, then the steps at which thresholds were crossed. */
    get measured() {
      const sizes = Object.values(this.manifest.measured).map((shape) => shape.reduce((a, b) => a * b, 1));
      return sizes.reduce((a, b) => a + b, 0);
    }
  }

  /** Replicas of SGD on the overlaps. */
  class Process extends Instance {
    constructor(module, manifest, { cell = 0, settings = {}, replicas = 1, first = 0 } = {}) {
      super(module, manifest, cell, settings);
      const { states, own, words } = this.cell;
      this.replicas = Array.from({ length: replicas }, (_, n) => {
        const row = (first + n) % states.length;
        const at = {};
        for (const [name, table] of [["state", states], ["own", own]]) {
          at[name] = this.reserve(BYTES * table[row].length);
          this.floats(at[name], table[row].length).set(table[row]);
        }
        at.words = this.reserve(BYTES);
        // The starts are used again with other words once all have been used.
        const word = (words[row][0] + Math.floor((first + n) / states.length)) >>> 0;
        new Uint32Array(this.exports.memory.buffer, at.words, 2).set([word, words[row][1]]);
        return at;
      });
      this.width = this.measured + Math.max(1, manifest.watched.length);
      this.out = this.reserve(BYTES * this.width);
      this.step = 0;
    }

    /** Take all replicas to a step. */
    advanceTo(step) {
      for (const at of this.replicas) this.exports.advance(at.state, at.own, at.words, this.step, step);
      this.step = step;
    }

    /** What is measured of all replicas, one row after the other. */
    measure() {
      const rows = new Float64Array(this.replicas.length * this.width);
      this.replicas.forEach((at, n) => {
        this.exports.measure(at.state, this.out);
        rows.set(this.floats(this.out, this.width), n * this.width);
      });
      return rows;
    }
  }

  /** The equations of the theory from the start of one replica. */
  class Theory extends Instance {
    constructor(module, manifest, { cell = 0, settings = {}, replica = 0 } = {}) {
      super(module, manifest, cell, settings);
      this.start = Float64Array.from(this.cell.overlaps[replica % this.cell.overlaps.length]);
      this.size = this.start.length;
      this.width = this.measured;
      this.from = this.reserve(BYTES * this.size);
      this.to = this.reserve(BYTES * this.width);
    }

    /** The derivative of a state, followed by what is measured of it beyond the state itself. */
    velocity(y) {
      this.floats(this.from, this.size).set(y);
      this.exports.velocity(this.from, this.to);
      return this.floats(this.to, this.width).slice();
    }

    /** Move the start by the size of rounding, in the direction of a sign; Q stays symmetric. */
    nudge(sign) {
      const [p] = this.manifest.measured.Q;
      const end = p * p + p * this.manifest.measured.M[1];
      for (let n = 0; n < end; n++) {
        const [i, j] = [Math.floor(n / p), n % p];
        const size = n < p * p ? Math.cos(1 + i + j + 5 * i * j) : Math.cos(2 + 3 * n);
        this.start[n] += sign * NUDGE * (1 + Math.abs(this.start[n])) * size;
      }
    }

    /** The solution at increasing times, one row of measured numbers each; rows after a divergence are NaN. */
    solve(times, looser = 1) {
      const { A, error, order, max_steps: most, safety, shrink, grow, first } = this.manifest.theory;
      const [rtol, atol] = [this.manifest.theory.rtol, this.manifest.theory.atol].map((tolerance) => looser * tolerance);
      const rows = new Float64Array(times.length * this.width).fill(NaN);
      const norm = (x, ...states) => {
        let sum = 0;
        for (let i = 0; i < this.size; i++) {
          const size = Math.max(...states.map((state) => Math.abs(state[i])));
          sum += (x[i] / (atol + rtol * size)) ** 2;
        }
        return Math.sqrt(sum / this.size);
      };
      const combined = (weights, slopes, h, base) => {
        const y = base === null ? new Float64Array(this.size) : Float64Array.from(base);
        weights.forEach((weight, stage) => {
          if (weight !== 0) for (let i = 0; i < this.size; i++) y[i] += h * weight * slopes[stage][i];
        });
        return y;
      };
      const keep = (place, state, found) => {
        rows.set(state, place * this.width);
        rows.set(found.subarray(this.size), place * this.width + this.size);
      };
      let [t, y, landed] = [times[0], this.start, 1];
      let slope = this.velocity(y);
      let size = (first * Math.max(norm(y, y), 1)) / Math.max(norm(slope, y), 1e-300);
      keep(0, y, slope);
      for (let attempts = 0; landed < times.length && attempts < most; attempts++) {
        const toEnd = times[landed] - t;
        const isCut = size >= (1 - 1e-12) * toEnd;
        const h = isCut ? toEnd : size;
        const slopes = [slope];
        for (let stage = 1; stage < A.length; stage++) {
          slopes.push(this.velocity(combined(A[stage].slice(0, stage), slopes, h, y)));
        }
        const next = combined(A[A.length - 1], slopes, h, y);
        const found = norm(combined(error, slopes, h, null), y, next);
        const size_of_error = Number.isNaN(found) ? Infinity : found;
        const isTaken = size_of_error <= 1;
        const best = safety * Math.max(size_of_error, 1e-30) ** (-1 / (order + 1));
        const proposed = h * Math.min(Math.max(best, shrink), isTaken ? grow : safety);
        size = isTaken && isCut ? Math.max(proposed, size) : proposed;
        if (!isTaken && size <= 1e-15 * Math.abs(t)) break;
        if (!isTaken) continue;
        t = isCut ? times[landed] : t + h;
        y = next;
        slope = slopes[slopes.length - 1];
        if (isCut) keep(landed++, y, slope);
      }
      return rows;
    }
  }

  /**
   * A bound on the error of the integrator in each number of a solution, which never shrinks with time: twice the
   * distance from two others, whose starts are moved by rounding. The steps of one are as long as a larger tolerance
   * allows; those of the other are at most half as long as from one time to the next, where these are the limit.
   */
  function errorsOf(module, manifest, ask, rows) {
    const { times } = ask;
    const halved = [times[0], ...times.slice(1).flatMap((time, n) => [(times[n] + time) / 2, time])];
    const errors = new Float64Array(rows.length);
    for (const [sign, landings, looser] of [[1, times, LOOSER], [-1, halved, 1]]) {
      const theory = new Theory(module, manifest, ask);
      theory.nudge(sign);
      const { width } = theory;
      const other = theory.solve(landings, looser);
      const stride = (landings.length - 1) / Math.max(1, times.length - 1);
      rows.forEach((value, n) => {
        const there = other[Math.floor(n / width) * stride * width + (n % width)];
        const gap = Number.isNaN(value) ? 0 : Number.isNaN(there) ? Infinity : 2 * Math.abs(value - there);
        errors[n] = Math.max(errors[n], gap, n < width ? 0 : errors[n - width]);
      });
    }
    return errors;
  }

  /** Answer the messages of a page; `post` sends one back. The latest run replaces those before it, which are told. */
  function serve(post) {
    // The module and the manifest that were loaded last, on their way or there: later questions wait for both.
    let [loaded, latest] = [Promise.reject(new Error("No program is loaded.")), 0];
    loaded.catch(() => {});
    const channel = new MessageChannel();
    const paused = []; // a run that was replaced goes on as well, to say so
    channel.port1.onmessage = () => paused.shift()();
    const pause = () =>
      new Promise((resolve) => {
        paused.push(resolve);
        channel.port2.postMessage(0);
      });

    async function load({ manifest, packed }) {
      return [await WebAssembly.compile(await unpacked(packed)), manifest];
    }

    async function run(ask) {
      const { id, times, replicas } = ask;
      const [module, manifest] = await loaded;
      if (ask.theory && manifest.theory && manifest.theory.A) {
        const starts = manifest.cells[ask.cell || 0].overlaps;
        const isSame = starts.every((row) => row.every((value, i) => value === starts[0][i]));
        for (let n = 0; n < (isSame ? 1 : replicas) && id === latest; n++) {
          const theory = new Theory(module, manifest, { ...ask, replica: ask.first + n });
          post({ kind: "theory", id, replica: n, width: theory.width, rows: theory.solve(times) });
          await pause();
        }
      }
      if (id !== latest) return post({ kind: "stopped", id });
      const process = new Process(module, manifest, ask);
      let [chunk, busy] = [16 * AHEAD, 0];
      post({ kind: "row", id, index: 0, step: 0, width: process.width, rows: process.measure() });
      for (let index = 1; index < times.length; index++) {
        const end = Math.round(times[index] / process.timePerStep);
        while (process.step < end && id === latest) {
          const began = performance.now();
          process.advanceTo(Math.min(end, process.step + chunk));
          const spent = performance.now() - began;
          busy += spent;
          const factor = Math.min(2, Math.max(0.5, SLICE / Math.max(spent, 0.1)));
          chunk = AHEAD * Math.max(1, Math.round((chunk * factor) / AHEAD));
          if (process.step < end) await pause();
        }
        if (id !== latest) return post({ kind: "stopped", id });
        post({ kind: "row", id, index, step: process.step, width: process.width, rows: process.measure() });
        await pause();
      }
      return post({ kind: "done", id, steps: process.step * replicas, seconds: busy / 1000 });
    }

    return async (message) => {
      const { kind, id } = message;
      try {
        if (kind === "load") {
          loaded = load(message);
          await loaded;
          post({ kind: "ready", id });
        } else if (kind === "stop") {
          if (id === undefined || id === latest) latest = -1;
        } else if (kind === "solve") {
          const theory = new Theory(...(await loaded), message);
          const rows = theory.solve(message.times);
          const errors = errorsOf(...(await loaded), message, rows);
          post({ kind: "theory", id, replica: 0, width: theory.width, rows, errors });
        } else if (kind === "run") {
          latest = id;
          await run(message);
        }
      } catch (error) {
        post({ kind: "error", id, message: String(error.message || error) });
      }
    };
  }

  return { Process, Theory, errorsOf, serve, unpacked };
}

if (typeof module !== "undefined") module.exports = { twolayerEngine };
