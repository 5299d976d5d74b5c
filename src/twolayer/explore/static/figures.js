// From curves to plots: which lines are drawn, in which colours, and the legends that state their values.

import { $, h, number, s } from "./dom.js";
import { colour, dash, faded } from "./palette.js";
import { HeatMaps, lengths, MANY, Plane, planes } from "./picture.js";
import { interpolate, Plot } from "./plots.js";

export const UNITS = { time: ["time", "time t"], samples: ["samples", "samples"], ratio: ["samples / d", "samples / d"] };
const LOWER = "₀₁₂₃₄₅₆₇₈₉";
const lower = (value) => [...String(value)].map((digit) => LOWER[digit]).join("");

const inUnit = (curve, unit) => (unit === "time" ? curve.time : unit === "samples" ? curve.samples : curve.samples.map((value) => value / curve.d));

export class Figures {
  /** `view` is read at every drawing; `onView(changes)` is called when the user zooms or chooses. */
  constructor({ onView, titles }) {
    Object.assign(this, { onView, titles, curves: [], pins: [], view: null, hovered: null, shown: null, lines: { risk: [], overlaps: [] } });
    const options = { onCursor: (x) => this.hover(x), onZoom: (zoom) => onView({ zoom }) };
    this.risk = new Plot($("risk-plot"), { ...options, height: () => (innerWidth < 860 ? 300 : 380) });
    this.overlaps = new Plot($("overlap-plot"), { ...options, height: () => (innerWidth < 860 ? 260 : 330) });
    this.plane = new Plane($("plane"), $("plane-help"));
    this.heat = new HeatMaps($("overlap-plot"));
  }

  /** `curves` are those of the setting, `pins` = [{name, curves}]. */
  draw(curves, pins, view) {
    Object.assign(this, { curves, pins, view });
    this.drawRisk();
    this.drawOverlaps();
    this.legend("risk");
    this.mark();
  }

  again() {
    this.risk.signature = this.overlaps.signature = "";
    if (this.view) this.draw(this.curves, this.pins, this.view);
  }

  options(more) {
    return { xLog: this.view.xScale === "log", xLabel: UNITS[this.view.x][1], zoom: this.view.zoom, ...more };
  }

  title(curve) {
    const title = this.titles[curve.name];
    const several = curve.kind === "simulation" ? `, mean of ${curve.replicas} runs` : `, mean over ${curve.replicas} starts`;
    const runs = curve.replicas > 1 ? `${several}; band: 10–90%` : "";
    return `${title ?? curve.name}${runs}`;
  }

  drawRisk() {
    const { x: unit, yScale } = this.view;
    const lines = [];
    const theories = this.curves.filter(({ kind }) => kind === "theory");
    const measured = this.curves.filter(({ kind }) => kind === "simulation");
    measured.forEach((curve, at) => {
      const hue = colour(1 + 6 * at);
      const x = inUnit(curve, unit);
      for (const run of curve.runs?.length > 1 ? curve.runs : []) lines.push({ x, y: run, colour: faded(hue, 0.28), width: 1, dash: [] });
      lines.push({ name: curve.name, title: this.title(curve), x, y: curve.excess_risk, low: curve.low, high: curve.high, fill: faded(hue, 0.16), colour: hue, width: 2, dash: [] });
    });
    theories.forEach((curve, at) => {
      const hue = colour(at === 0 ? 0 : at + 1);
      const x = inUnit(curve, unit);
      const y = curve.excess_risk;
      const errors = curve.error?.some((value) => value > 0) ? curve.error : null;
      const [low, high] = [-1, 1].map((sign) => y.map((value, i) => (value === null ? null : value + sign * (errors?.[i] ?? 0))));
      if (errors) lines.push({ name: `${curve.name} error`, isTheory: true, errors, title: `numerical error of ${this.titles[curve.name] ?? curve.name}${curve.errorOf ? `, ${curve.errorOf}` : ""}`, x, y, low, high, fill: faded(hue, 0.3), colour: "transparent", width: 0, dash: [] });
      lines.push({ name: curve.name, isTheory: true, title: this.title(curve), x, y, low: curve.low, high: curve.high, fill: faded(hue, 0.14), colour: hue, width: 2.6, dash: at === 0 ? [] : dash(at) });
    });
    this.pins.forEach(({ name, curves }, at) => {
      for (const curve of curves ?? []) lines.push({ name: `${name}: ${curve.name}`, title: `pinned ${name}`, x: inUnit(curve, unit), y: curve.excess_risk, colour: colour(3 + at), width: 2.2, dash: dash(at + 1) });
    });
    this.lines.risk = lines;
    this.risk.draw(lines, this.options({ yLog: yScale === "log", fromZero: true, empty: this.curves.length ? "Nothing here is positive: choose the linear scale." : "The first curve is being computed." }));
    const named = lines.filter(({ name, errors }) => name && !errors);
    const summary = Object.fromEntries(named.map(({ name, y }) => [name, { name, points: y.length, last: y.findLast((value) => value !== null) ?? null }]));
    $("risk-plot").dataset.summary = JSON.stringify(summary);
    const words = named.map(({ title, y }) => `${title}: from ${number(y.find((value) => value !== null))} to ${number(y.findLast((value) => value !== null))}`);
    $("risk-plot").setAttribute("aria-label", `Excess risk against ${UNITS[unit][0]}. ${words.join("; ") || "No curves yet"}.`);
  }

  /** The curve whose overlaps are shown: the one that was chosen, else the first theory. */
  chooseShown() {
    const having = this.curves.filter((curve) => curve.Q?.length && curve.M?.length);
    this.shown = having.find(({ name }) => name === this.view.of) ?? having.find(({ kind }) => kind === "theory") ?? having[0] ?? null;
    options($("overlap-of"), having.map((curve) => [curve.name, this.titles[curve.name] ?? curve.name]), this.shown?.name);
    options($("plane-of"), this.shown ? planes(this.shown) : [], this.view.plane);
  }

  drawOverlaps() {
    this.chooseShown();
    const curve = this.shown;
    this.plane.show(curve, this.view.plane);
    if (curve === null) {
      this.lines.overlaps = [];
      $("overlap-legend").replaceChildren();
      return this.overlaps.clear("No overlaps yet.");
    }
    const isMany = lengths(curve).p > MANY;
    $("overlap-kind").hidden = isMany;
    $("overlap-plot").setAttribute("role", isMany ? "group" : "img");
    if (isMany) {
      this.overlaps.clear("");
      this.lines.overlaps = [];
      $("overlap-legend").replaceChildren();
      $("overlap-plot").setAttribute("aria-label", "Overlaps at the chosen time, as heat maps");
      return this.heat.show(curve);
    }
    this.heat.curve = null;
    if ($("overlap-plot").querySelector(".heat")) $("overlap-plot").replaceChildren();
    const other = this.curves.find((item) => item.kind !== curve.kind && item.Q?.length && lengths(item).p === lengths(curve).p);
    const behind = other ? this.entries(other).map((line) => ({ ...line, name: undefined, width: 1.2, colour: faded(line.colour, 0.5), dash: [] })) : [];
    this.lines.overlaps = [...behind, ...this.entries(curve)];
    this.overlaps.draw(this.lines.overlaps, this.options({ yLog: false, fromZero: false }));
    $("overlap-plot").setAttribute("aria-label", `Overlaps ${this.view.overlaps} of ${curve.name} against ${UNITS[this.view.x][0]}`);
    this.legend("overlaps");
  }

  entries(curve) {
    const { p, k } = lengths(curve);
    const x = inUnit(curve, this.view.x);
    const name = this.view.overlaps;
    const pairs = Array.from({ length: p }, (_, j) => (name === "M" ? Array.from({ length: k }, (_, r) => [j, r]) : Array.from({ length: p - j }, (_, more) => [j, j + more]))).flat();
    return pairs.map(([j, r]) => {
      const title = `${name}${lower(j + 1)}${p > 9 || k > 9 ? "," : ""}${lower(r + 1)}`;
      const isThin = name === "Q" && j !== r;
      return { name: title, title, x, y: curve[name].map((matrix) => matrix?.[j]?.[r] ?? null), colour: colour(j), width: isThin ? 1.3 : 2.2, dash: name === "M" ? dash(r) : isThin ? dash(2) : [] };
    });
  }

  // ----------------------------------------------------------------------------------------------------- time and values

  get time() {
    const curve = this.shown ?? this.curves[0];
    if (!curve?.time.length) return null;
    const [first, last] = [curve.time.find((value) => value > 0) ?? 0, curve.time.at(-1)];
    return this.view.xScale === "log" && first > 0 ? first * (last / first) ** this.view.at : curve.time[0] + (last - curve.time[0]) * this.view.at;
  }

  /** The chosen time in the unit of the horizontal axis. */
  get x() {
    const curve = this.shown ?? this.curves[0];
    return this.time === null ? null : interpolate(curve.time, inUnit(curve, this.view.x), this.time);
  }

  mark() {
    const { time, x } = this;
    for (const plot of [this.risk, this.overlaps]) plot.mark(x);
    this.plane.at(time);
    this.heat.at(time);
    $("time").value = Math.round(this.view.at * 1000);
    const words = time === null ? "" : this.view.x === "time" ? `t = ${number(time)}` : `${number(x)} ${UNITS[this.view.x][0]}`;
    $("time-value").textContent = words;
    $("time").setAttribute("aria-valuetext", words);
    this.values();
  }

  hover(x) {
    this.hovered = x;
    this.values();
  }

  legend(which) {
    const list = $(which === "risk" ? "risk-legend" : "overlap-legend");
    const named = this.lines[which].filter(({ name }) => name);
    const order = ({ isTheory, errors }) => (errors ? 2 : isTheory ? 0 : 1);
    const first = which === "risk" ? named.toSorted((one, other) => order(one) - order(other)) : named;
    const rows = first.map((line) => {
      const value = h("span", { class: "value" });
      return { line, value, node: h("li", {}, swatch(line), h("span", {}, line.title), value) };
    });
    list.replaceChildren(...rows.map(({ node }) => node));
    list.rows = rows;
  }

  values() {
    const x = this.hovered ?? this.x;
    for (const list of [$("risk-legend"), $("overlap-legend")]) {
      for (const { line, value } of list.children.length ? (list.rows ?? []) : []) value.textContent = `${line.errors ? "± " : ""}${number(interpolate(line.x, line.errors ?? line.y, x))}`;
    }
  }
}

function swatch({ colour: hue, width, dash: pattern, low, fill }) {
  return s("svg", { viewBox: "0 0 26 12", width: 26, height: 12, "aria-hidden": "true" }, low ? s("path", { d: "M0 0H26V12H0Z", fill }) : "",
    s("path", { d: "M0 6H26", stroke: hue, "stroke-width": width, "stroke-dasharray": pattern.join(" ") || null }));
}

/** Put options into a select and choose one, without touching it when nothing changed. */
export function options(select, pairs, chosen) {
  const text = JSON.stringify(pairs);
  if (select.dataset.pairs !== text) {
    select.dataset.pairs = text;
    select.replaceChildren(...pairs.map(([value, words]) => h("option", { value }, words)));
  }
  if (pairs.some(([value]) => value === chosen)) select.value = chosen;
  select.disabled = pairs.length < 2;
}
