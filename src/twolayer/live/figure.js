"use strict";
/**
 * Live figures: every element of class `tl-live` becomes an experiment with knobs, drawn while a worker computes it.
 *
 * The element holds its settings as JSON in a script of type application/json, and a printed figure as fallback. A
 * program is a script of its own, which calls `twolayerLive.define`; it is fetched when the figure comes into view.
 */
const twolayerLive = (() => {
  const programs = {};
  const waiting = {};
  const canCompute = typeof WebAssembly === "object" && typeof DecompressionStream === "function";

  /** Both the manifest and the module are compressed, and written in base64. */
  function define(name, manifest, packed) {
    const text = twolayerEngine().unpacked(manifest).then((bytes) => new TextDecoder().decode(bytes));
    programs[name] = text.then((json) => ({ manifest: JSON.parse(json), packed }));
    (waiting[name] || []).forEach((resolve) => resolve(programs[name]));
  }

  function fetched(name, address) {
    if (programs[name]) return programs[name];
    return new Promise((resolve, reject) => {
      (waiting[name] = waiting[name] || []).push(resolve);
      if (waiting[name].length > 1) return;
      const script = document.createElement("script");
      script.src = address;
      script.onerror = () => reject(new Error(`The program ${address} cannot be loaded.`));
      document.head.append(script);
    });
  }

  // Workers beside the page, to which one core is left.
  const MOST_WORKERS = 8;
  const workerCount = () => Math.max(1, Math.min(MOST_WORKERS, (navigator.hardwareConcurrency || 1) - 1));

  function newWorker() {
    const text = `const serve = (${twolayerEngine.toString()})().serve(postMessage); onmessage = (e) => serve(e.data);`;
    return new Worker(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
  }

  // ---------------------------------------------------------------------------------------------------- numbers

  const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";
  const raised = (n) => (n < 0 ? "⁻" : "") + [...String(Math.abs(n))].map((c) => SUPERSCRIPTS[c]).join("");

  /** A number in a few digits, powers of ten written out. */
  function shown(x, digits = 3) {
    if (!Number.isFinite(x)) return "diverged";
    if (x === 0) return "0";
    const power = Math.floor(Math.log10(Math.abs(x)) + 1e-9);
    if (power >= 4 || power < -3) {
      const front = Number((x / 10 ** power).toPrecision(digits));
      return (front === 1 ? "" : `${front}·`) + `10${raised(power)}`;
    }
    return String(Number(x.toPrecision(digits)));
  }

  /** Ticks of an axis: powers of ten, or round numbers. */
  function ticks(low, high, isLog) {
    if (isLog) {
      const first = Math.ceil(Math.log10(low) - 1e-9);
      const last = Math.floor(Math.log10(high) + 1e-9);
      const step = Math.max(1, Math.ceil((last - first) / 6));
      const parts = last - first < 2 ? [1, 2, 5] : [1];
      const found = [];
      for (let n = first - 1; n <= last; n += step) found.push(...parts.map((part) => part * 10 ** n));
      return found.filter((tick) => tick >= low && tick <= high);
    }
    const rough = (high - low) / 5;
    const scale = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * scale).find((s) => s >= rough);
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n <= high / step + 1e-9; n++) found.push(n * step);
    return found;
  }

  // ------------------------------------------------------------------------------------------------------- plot

  /** Lines on a canvas, in the colours of the page. A line is {x, y, color, width, alpha, dash}. */
  function plot(canvas, { lines, x, y }) {
    const box = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [box.width, box.height];
    if (canvas.width !== Math.round(w * ratio)) canvas.width = Math.round(w * ratio);
    if (canvas.height !== Math.round(h * ratio)) canvas.height = Math.round(h * ratio);
    const pen = canvas.getContext("2d");
    const style = getComputedStyle(canvas);
    const [left, right, top, bottom] = [58, w - 18, 8, h - 40];
    const place = (axis, value, a, b) => {
      const [low, high] = axis.isLog ? axis.range.map(Math.log) : axis.range;
      return a + (b - a) * (((axis.isLog ? Math.log(value) : value) - low) / (high - low));
    };
    const px = (value) => place(x, value, left, right);
    const py = (value) => place(y, value, bottom, top);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, w, h);
    pen.font = `12px ${style.fontFamily}`;
    pen.fillStyle = pen.strokeStyle = style.color;
    pen.lineWidth = 1;
    pen.textAlign = "center";
    for (const tick of ticks(...x.range, x.isLog)) {
      pen.globalAlpha = 0.12;
      pen.fillRect(px(tick), top, 1, bottom - top);
      pen.globalAlpha = 0.85;
      pen.fillText(shown(tick), px(tick), bottom + 16);
    }
    pen.textAlign = "right";
    for (const tick of ticks(...y.range, y.isLog)) {
      pen.globalAlpha = 0.12;
      pen.fillRect(left, py(tick), right - left, 1);
      pen.globalAlpha = 0.85;
      pen.fillText(shown(tick), left - 6, py(tick) + 4);
    }
    pen.globalAlpha = 0.85;
    pen.textAlign = "center";
    pen.fillText(x.label, (left + right) / 2, h - 6);
    pen.save();
    pen.translate(13, (top + bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(y.label, 0, 0);
    pen.restore();
    pen.save();
    pen.beginPath();
    pen.rect(left, top, right - left, bottom - top);
    pen.clip();
    for (const line of lines) {
      pen.globalAlpha = line.alpha || 1;
      pen.strokeStyle = style.getPropertyValue(line.color) || style.color;
      pen.lineWidth = line.width || 1;
      pen.setLineDash(line.dash || []);
      pen.beginPath();
      let isDown = false;
      for (let i = 0; i < line.y.length; i++) {
        const value = y.isLog ? Math.max(line.y[i], y.range[0] * 1e-3) : line.y[i];
        if (!Number.isFinite(value)) break;
        pen[isDown ? "lineTo" : "moveTo"](px(line.x[i]), py(value));
        isDown = true;
      }
      pen.stroke();
    }
    pen.restore();
    pen.globalAlpha = 1;
  }

  // ----------------------------------------------------------------------------------------------------- figure

  function made(tag, attributes = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    element.append(...children);
    return element;
  }

  /** The place of a measured quantity in a row; `over` combines several numbers, the largest by default. */
  function reader(manifest, name) {
    let place = 0;
    for (const [key, shape] of Object.entries(manifest.measured)) {
      const size = shape.reduce((a, b) => a * b, 1);
      const start = place;
      if (key === name) return (row) => Math.max(...row.subarray(start, start + size));
      place += size;
    }
    throw new Error(`Nothing named ${name} is measured.`);
  }

  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  function error(values) {
    const centre = mean(values);
    return Math.sqrt(values.reduce((a, b) => a + (b - centre) ** 2, 0) / Math.max(1, values.length - 1) / values.length);
  }

  /** The words of a verdict and their meanings, those of `twolayer.data.deviation`, of which this is the criterion. */
  const OUTCOMES = {
    agrees: "no difference exceeds what chance and the stated errors allow, and a large one would have been seen",
    consistent: "no difference exceeds what chance allows, but the scatter is too wide for a sharp test",
    undecided: "there is not enough data for a verdict",
    "finite-d effect": "the difference is real and of the size that finite d causes; it should shrink as d grows",
    differs: "the difference is larger than chance, numerical errors and finite d can explain",
  };
  const HEADS = {
    agrees: "SGD agrees with the theory",
    consistent: "SGD is consistent with the theory",
    undecided: "SGD against the theory is undecided",
    "finite-d effect": "SGD follows the theory up to a finite-d effect",
    differs: "SGD differs from the theory",
  };
  const [ROUNDING, WEAK, NEIGHBOURS] = [1e-12, 0.5, 1 / 16];
  const NEGLIGIBLE = 1e-6;

  /** Raise the scatter at each place to its root mean square over the neighbouring places. */
  function sharedScatter(scatter) {
    const reach = Math.max(1, Math.floor(NEIGHBOURS * scatter.length));
    return scatter.map((own, place) => {
      const near = scatter.slice(Math.max(0, place - reach), place + reach + 1);
      return Math.max(own, Math.sqrt(mean(near.map((value) => value ** 2))));
    });
  }

  /**
   * Compare one quantity of runs with a theory, a limit of large d, from the same starts.
   *
   * `theory` has one row for all runs, or one for each; `limit` is the number of standard errors that chance exceeds in
   * one comparison of 1000. Returns the word of the verdict, the largest distance in standard errors, and its place.
   */
  function judge(runs, theory, limit) {
    const all = [...runs.flatMap((run) => [...run]), ...theory.flatMap((row) => [...row])];
    if (runs.length < 2 || !all.every(Number.isFinite)) return { outcome: "undecided", errors: 0, place: 0 };
    const spread = all.reduce((a, b) => Math.max(a, b)) - all.reduce((a, b) => Math.min(a, b));
    const numerical = ROUNDING * Math.max(1, spread);
    let [worst, missed, beyond, widest] = [{ errors: 0, place: 0, size: 0, scatter: 0 }, 0, 0, 0];
    const gapsAt = (place) => runs.map((run, n) => run[place] - theory[theory.length > 1 ? n : 0][place]);
    const gaps = Array.from(runs[0], (_, place) => gapsAt(place));
    const scatters = sharedScatter(gaps.map((values) => error(values) * Math.sqrt(runs.length)));
    for (const [place, scatter] of scatters.entries()) {
      const [size, stderr] = [Math.abs(mean(gaps[place])), scatter / Math.sqrt(runs.length)];
      // Scatter at one time shifts the mean at later times, by its square over the range, and no more than by itself.
      widest = Math.max(widest, scatter);
      const shift = Math.min(widest ** 2 / Math.max(spread, ROUNDING), widest);
      if (size > numerical && size / stderr > worst.errors) worst = { errors: size / stderr, place, size, scatter };
      if (size > shift + numerical) beyond = Math.max(beyond, (size - shift - numerical) / stderr);
      missed = Math.max(missed, (limit * stderr + numerical) / Math.max(spread, ROUNDING));
    }
    const isWithinChance = worst.errors <= limit;
    const isOfFiniteD = worst.size <= worst.scatter || beyond <= limit;
    const isSame = worst.errors === 0;
    const word = isSame || missed <= WEAK ? "agrees" : "consistent";
    const { errors, place } = worst;
    return { outcome: isWithinChance ? word : isOfFiniteD ? "finite-d effect" : "differs", errors, place };
  }

  class Figure {
    constructor(element, settings) {
      this.element = element;
      this.settings = settings;
      this.calm = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.id = 0;
      this.first = 0;
      this.build();
      const watch = new IntersectionObserver((entries) => {
        if (!entries.some((entry) => entry.isIntersecting)) return;
        watch.disconnect();
        this.load();
      }, { rootMargin: "200px" });
      watch.observe(element);
    }

    build() {
      const { title, knobs, y, note } = this.settings;
      this.canvas = made("canvas", { role: "img", "aria-label": `${title}: ${y.label} of SGD and of the theory` });
      this.status = made("p", { class: "tl-status", role: "status", "aria-live": "polite" });
      this.speed = made("span", { class: "tl-speed" });
      this.values = Object.fromEntries(knobs.map((knob) => [knob.name, knob.value]));
      this.inputs = knobs.map((knob) => this.knob(knob));
      const again = made("button", { type: "button" }, "New runs");
      const reset = made("button", { type: "button" }, "Reset");
      again.onclick = () => ((this.first += this.settings.replicas), this.run());
      reset.onclick = () => this.reset();
      this.stage = made(
        "div", { class: "tl-stage" },
        made("p", { class: "tl-title" }, title, this.key("tl-sgd", "SGD"), this.key("tl-theory", "theory")),
        this.canvas,
        made("div", { class: "tl-knobs" }, ...this.inputs.map((input) => input.label)),
        made("div", { class: "tl-buttons" }, again, reset, this.speed),
        this.status,
        ...(note ? [made("p", { class: "tl-note" }, note)] : []),
      );
      this.element.append(this.stage);
      this.element.dataset.state = "idle";
      const redraw = () => this.draw();
      new ResizeObserver(redraw).observe(this.canvas);
      new MutationObserver(redraw).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    }

    /** An entry of the legend. */
    key(name, text) {
      return made("span", { class: "tl-key" }, made("i", { class: name, "aria-hidden": "true" }), text);
    }

    /** A slider for a number of the program, or for its dimension. */
    knob(knob) {
      const values = knob.values;
      const toPlace = (value) => {
        if (values) return values.indexOf(value);
        return knob.scale === "log" ? Math.log(value / knob.low) / Math.log(knob.high / knob.low)
          : (value - knob.low) / (knob.high - knob.low);
      };
      const toValue = (place) => {
        if (values) return values[place];
        const value = knob.scale === "log" ? knob.low * (knob.high / knob.low) ** place
          : knob.low + (knob.high - knob.low) * place;
        return Number(value.toPrecision(3));
      };
      const range = values ? { min: 0, max: values.length - 1, step: 1 } : { min: 0, max: 1, step: 0.005 };
      const input = made("input", { type: "range", ...range });
      const output = made("output");
      const show = () => {
        output.textContent = shown(this.values[knob.name]);
        input.setAttribute("aria-valuetext", `${knob.label} ${shown(this.values[knob.name])}`);
      };
      const set = (value) => {
        this.values[knob.name] = value;
        input.value = toPlace(value);
        show();
      };
      input.oninput = () => {
        this.values[knob.name] = toValue(Number(input.value));
        show();
        clearTimeout(this.delay);
        this.delay = setTimeout(() => this.run(), 60);
      };
      const label = made("label", {}, knob.label, output, input);
      set(knob.value);
      return { label, set, knob };
    }

    reset() {
      this.first = 0;
      for (const { set, knob } of this.inputs) set(knob.value);
      this.run();
    }

    async load() {
      try {
        const program = await fetched(this.settings.program, this.settings.address);
        this.manifest = program.manifest;
        this.read = reader(this.manifest, this.settings.y.quantity);
        const { replicas } = this.settings;
        const count = Math.min(workerCount(), replicas);
        // Replica n has its own start and random numbers, whichever worker takes it: the numbers are the same for any count.
        const from = (n) => Math.round((n * replicas) / count);
        this.workers = Array.from({ length: count }, (_, n) => ({ from: from(n), to: from(n + 1), worker: newWorker() }));
        let waiting = count;
        for (const one of this.workers) {
          one.worker.onmessage = ({ data }) => (data.kind === "ready" ? --waiting || this.run() : this.receive(data, one));
          one.worker.onerror = (event) => this.fail(event.message);
          one.worker.postMessage({ kind: "load", ...program });
        }
      } catch (problem) {
        this.fail(problem.message);
      }
    }

    fail(message) {
      this.element.dataset.state = "absent";
      this.element.title = `The live figure is not available: ${message}`;
    }

    run() {
      if (!this.workers) return;
      const { manifest, settings } = this;
      const { d, ...numbers } = this.values;
      const cell = d === undefined ? 0 : manifest.cells.findIndex((one) => one.d === d);
      const { time_per_rate: unit, numbers: base, d: dimension, overlaps } = manifest.cells[cell];
      const rate = numbers.learning_rate === undefined ? base[manifest.names.learning_rate] : numbers.learning_rate;
      // On the axis of samples one unit is d samples, that is d steps; on the axis of time the program has its own.
      this.perUnit = settings.x.quantity === "samples" ? dimension : 1 / (unit * rate);
      const { points, until, replicas } = settings;
      this.x = Array.from({ length: points + 1 }, (_, n) => (until * n) / points);
      const times = this.x.map((value) => value * this.perUnit * unit * rate);
      this.runs = Array.from({ length: replicas }, () => []);
      this.theory = [];
      this.passages = [];
      this.finished = [];
      this.id += 1;
      this.began = performance.now();
      if (this.element.dataset.state !== "idle") this.element.dataset.state = "running";
      this.speed.textContent = "";
      const isOneStart = overlaps.every((row) => row.every((value, i) => value === overlaps[0][i]));
      for (const { from, to, worker } of this.workers) {
        const ask = { id: this.id, cell, settings: numbers, replicas: to - from, first: this.first + from, times };
        const theory = settings.theory !== false && (from === 0 || !isOneStart);
        worker.postMessage({ kind: "run", theory, ...ask });
      }
    }

    /** Take a message of the worker that has the replicas from one number to another. */
    receive(message, { from }) {
      if (message.kind === "error") return this.fail(message.message);
      if (message.id !== this.id) return undefined;
      const rows = (data, width) =>
        Array.from({ length: data.length / width }, (_, n) => data.subarray(n * width, (n + 1) * width));
      if (message.kind === "theory") this.theory[from + message.replica] = rows(message.rows, message.width).map(this.read);
      if (message.kind === "row") {
        // Until here the page shows the printed figure.
        if (this.element.dataset.state === "idle") this.element.dataset.state = "running";
        const all = rows(message.rows, message.width);
        all.forEach((row, n) => {
          this.runs[from + n].push(this.read(row));
          this.passages[from + n] = row[row.length - 1];
        });
      }
      const isDone = message.kind === "done" && this.finished.push(message) === this.workers.length;
      if (isDone) this.conclude();
      if (isDone || !this.calm) this.draw();
      return undefined;
    }

    conclude() {
      const sum = (values) => values.reduce((a, b) => a + b, 0);
      const steps = sum(this.finished.map((one) => one.steps));
      const speed = sum(this.finished.map((one) => (one.seconds > 0 ? one.steps / one.seconds : 0)));
      this.element.dataset.state = "done";
      this.element.dataset.speed = speed;
      const workers = this.workers.length > 1 ? ` on ${this.workers.length} cores` : "";
      if (this.finished.every((one) => one.seconds > 0.05)) this.speed.textContent = `${shown(speed, 2)} steps a second${workers}`;
      const [head, ...meaning] = this.verdict().split(": ");
      this.status.replaceChildren(made("strong", {}, head), meaning.length > 0 ? `: ${meaning.join(": ")} ` : " ", this.sentence(steps));
    }

    /** The verdict on what is drawn, as a sentence; empty without a theory. */
    verdict() {
      const ends = this.runs.map((run) => run[run.length - 1]);
      const isJudged = this.settings.allowed && this.theory.length > 0;
      this.judged = isJudged ? judge(this.runs, this.theory, this.settings.allowed) : null;
      const outcome = isJudged ? this.judged.outcome : "";
      this.element.dataset.verdict = outcome;
      if (!ends.every(Number.isFinite)) return "Runs diverge at these numbers.";
      return outcome && `${HEADS[outcome]}: ${OUTCOMES[outcome]}.`;
    }

    /** What the figure shows, in sentences with numbers. */
    sentence(steps) {
      const { y, x, until, replicas } = this.settings;
      const last = this.runs.map((run) => run[run.length - 1]);
      const parts = [];
      if (this.judged && this.judged.errors > 0) {
        const { errors, place } = this.judged;
        const chance = `chance alone reaches ${shown(this.settings.allowed, 2)} in one figure of 1000`;
        const where = `${x.short ? `${x.short} ` : ""}${shown(this.x[place])}`;
        parts.push(`Their means are up to ${shown(errors, 2)} standard errors apart, at ${where} (${chance}).`);
      }
      parts.push(`${replicas} runs of ${shown(Math.round(steps / replicas))} steps.`);
      if (this.manifest.watched.length > 0) {
        const escaped = this.passages.filter((step) => step >= 0).map((step) => step / this.perUnit);
        const at = escaped.length > 1 ? `, on average at ${shown(mean(escaped))} ± ${shown(error(escaped), 2)}` : "";
        parts.push(`${escaped.length} of ${replicas} have escaped${at}.`);
      }
      const theory = this.theory.map((row) => row[row.length - 1]);
      // Below this the theory has no digits: its steps are taken to a tolerance of 1e-8.
      const isNone = Math.max(...last, ...theory) < NEGLIGIBLE;
      const numbers = isNone ? `below ${shown(NEGLIGIBLE)}` : `${shown(mean(last))} ± ${shown(error(last), 2)}`;
      const predicted = theory.length > 0 ? `, theory ${isNone ? "too" : shown(mean(theory))}` : "";
      const { theory: known } = this.manifest;
      if (this.settings.theory !== false && known && known.reason) parts.push(`No theory is drawn. ${known.reason}`);
      parts.push(`At ${x.short || "the end"} ${shown(until)}: ${y.label} ${numbers}${predicted}.`);
      return parts.join(" ");
    }

    draw() {
      if (this.isDue || !this.x) return;
      this.isDue = true;
      requestAnimationFrame(() => {
        this.isDue = false;
        this.paint();
      });
    }

    paint() {
      const { x, y, until } = this.settings;
      const all = [...this.runs.flat(), ...this.theory.flat()].filter((value) => Number.isFinite(value));
      const isLog = y.scale === "log";
      const used = isLog ? all.filter((value) => value > 0) : all;
      const least = used.reduce((a, b) => Math.min(a, b), Infinity);
      const most = used.reduce((a, b) => Math.max(a, b), -Infinity);
      const found = isLog ? [Math.max(least, y.floor || 0) / 1.3, most * 1.3] : [Math.min(0, least), most * 1.08];
      const range = y.range || found;
      const several = this.theory.length > 1;
      const alpha = this.runs.length > 16 ? 0.4 : 0.55;
      const lines = this.runs.map((run) => ({ x: this.x, y: run, color: "--tl-sgd", width: 1, alpha }));
      for (const row of this.theory.filter((one) => one)) {
        lines.push({ x: this.x, y: row, color: "--tl-theory", width: several ? 1 : 2.5, dash: [6, 4], alpha: several ? 0.6 : 1 });
      }
      if (range.every(Number.isFinite) && range[0] < range[1]) {
        plot(this.canvas, { lines, x: { range: [0, until], label: x.label }, y: { range, label: y.label, isLog } });
      }
    }
  }

  function start() {
    for (const element of document.querySelectorAll(".tl-live")) {
      const settings = JSON.parse(element.querySelector("script[type='application/json']").textContent);
      if (canCompute) new Figure(element, settings);
      else element.dataset.state = "absent";
    }
  }
  if (typeof document !== "undefined") {
    if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
    else start();
  }
  return { define, start, plot, shown, ticks, judge, OUTCOMES };
})();
