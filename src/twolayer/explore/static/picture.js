// The picture of the neurons at one time: the plane of overlap m and squared length q, or heat maps for many neurons.

import { colour, diverging } from "./palette.js";
import { h, number, s } from "./dom.js";
import { interpolate } from "./plots.js";

const WIDTH = 460;
const HEIGHT = 400;
const EDGE = { left: 46, right: 16, top: 14, bottom: 42 };
export const MANY = 6;

const column = (curve, name, ...at) => curve[name].map((matrix) => at.reduce((value, index) => value?.[index], matrix) ?? null);
const ofNeurons = (curve, name, p, r) => Array.from({ length: p }, (_, j) => column(curve, name, j, r));
export const entryAt = (curve, name, time, ...at) => interpolate(curve.time, column(curve, name, ...at), time);
export const lengths = (curve) => ({ p: curve.Q?.[0]?.length ?? 0, k: curve.M?.[0]?.[0]?.length ?? 0 });

/** Which planes there are for a curve: (m, q) for each unit of the target, and pairs of overlaps. */
export function planes(curve) {
  const { k } = lengths(curve);
  const few = Math.min(k, 4);
  const names = Array.from({ length: few }, (_, unit) => [unit === 0 ? "mq" : `mq${unit + 1}`, k === 1 ? "overlap m, squared length q" : `m with unit ${unit + 1}, q`]);
  if (k > 1) names.push(["mm", "m with units 1 and 2"]);
  return names;
}

export class Plane {
  constructor(element, help) {
    Object.assign(this, { element, help, curve: null, plane: "mq" });
  }

  show(curve, plane) {
    const { p, k } = curve === null ? { p: 0, k: 0 } : lengths(curve);
    if (p === 0 || k === 0) {
      this.curve = null;
      this.help.textContent = "";
      this.element.replaceChildren(h("p", { class: "empty" }, "No overlaps yet."));
      return;
    }
    const known = planes(curve).map(([name]) => name);
    this.plane = known.includes(plane) ? plane : "mq";
    this.curve = curve;
    const unit = Number(this.plane.slice(2) || 1) - 1;
    const isPair = this.plane === "mm";
    this.x = ofNeurons(curve, "M", p, isPair ? 0 : unit);
    this.y = isPair ? ofNeurons(curve, "M", p, 1) : Array.from({ length: p }, (_, j) => column(curve, "Q", j, j));
    this.draw(isPair, unit);
  }

  draw(isPair, unit) {
    const all = [this.x, this.y].map((sets) => sets.flat().filter((value) => value !== null));
    const goal = isPair ? [[1, 0], [0, 1]] : [[1, 1]];
    const [right, top] = [0, 1].map((axis) => Math.max(1.12, ...all[axis]) * 1.06);
    const left = Math.min(-0.12, ...all[0]) * 1.12;
    const bottom = isPair ? Math.min(-0.12, ...all[1]) * 1.12 : 0;
    this.toX = (value) => EDGE.left + ((value - left) / (right - left)) * (WIDTH - EDGE.left - EDGE.right);
    this.toY = (value) => HEIGHT - EDGE.bottom - ((value - bottom) / (top - bottom)) * (HEIGHT - EDGE.top - EDGE.bottom);
    const label = (j) => (isPair ? `m${j}` : j === 0 ? (lengths(this.curve).k > 1 ? `overlap m with unit ${unit + 1}` : "overlap m") : "squared length q");
    const axes = [...ticks(left, right).map((value) => [s("path", { class: "grid", d: `M${this.toX(value)} ${EDGE.top}V${HEIGHT - EDGE.bottom}` }),
      s("text", { x: this.toX(value), y: HEIGHT - EDGE.bottom + 17, "text-anchor": "middle" }, number(value))]),
    ...ticks(bottom, top).map((value) => [s("path", { class: "grid", d: `M${EDGE.left} ${this.toY(value)}H${WIDTH - EDGE.right}` }),
      s("text", { x: EDGE.left - 7, y: this.toY(value) + 4, "text-anchor": "end" }, number(value))])].flat();
    const words = [s("text", { x: (EDGE.left + WIDTH - EDGE.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, isPair ? "overlap with unit 1" : label(0)),
      s("text", { transform: `translate(12 ${(HEIGHT - EDGE.bottom + EDGE.top) / 2}) rotate(-90)`, "text-anchor": "middle" }, isPair ? "overlap with unit 2" : label(1))];
    const goals = goal.map(([x, y]) => s("path", { class: "goal", d: `M${this.toX(x) - 6} ${this.toY(y)}h12M${this.toX(x)} ${this.toY(y) - 6}v12` }));
    this.trails = this.x.map((_, j) => s("path", { class: "trail", stroke: colour(j) }));
    this.balls = this.x.map((_, j) => s("circle", { class: "ball", r: this.x.length > 16 ? 4 : 7, fill: colour(j) }));
    this.names = this.x.length <= MANY ? this.x.map((_, j) => s("text", { class: "number" }, String(j + 1))) : [];
    this.svg = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": "Neurons in the plane of their overlaps" },
      isPair ? [] : this.forbidden(left, right, top), axes, isPair ? [] : s("path", { class: "axis", d: `M${this.toX(0)} ${EDGE.top}V${HEIGHT - EDGE.bottom}` }),
      words, goals, this.trails, this.balls, this.names);
    this.element.replaceChildren(this.svg);
    this.help.textContent = isPair
      ? "One dot for each neuron, and its way from the start. The crosses are the units of the target."
      : "One dot for each neuron, and its way from the start. The cross is the unit of the target. No neuron is in the grey area, where m² > q.";
  }

  forbidden(left, right, top) {
    const points = Array.from({ length: 61 }, (_, at) => left + ((right - left) * at) / 60).map((m) => [this.toX(m), this.toY(Math.min(m * m, top))]);
    const line = points.map((point) => point.map((value) => value.toFixed(1)).join(" ")).join("L");
    return [s("path", { class: "never", d: `M${line}L${this.toX(right)} ${this.toY(0)}L${this.toX(left)} ${this.toY(0)}Z` }), s("path", { class: "bound", d: `M${line}` })];
  }

  at(time) {
    if (this.curve === null) return;
    const { time: times } = this.curve;
    const end = times.findLastIndex((value) => value <= time);
    for (const [j, ball] of this.balls.entries()) {
      const [x, y] = [interpolate(times, this.x[j], time), interpolate(times, this.y[j], time)];
      const isThere = x !== null && y !== null;
      ball.setAttribute("visibility", isThere ? "visible" : "hidden");
      this.names[j]?.setAttribute("visibility", isThere ? "visible" : "hidden");
      if (!isThere) continue;
      const way = times.slice(0, end + 1).flatMap((_, at) => (this.x[j][at] === null ? [] : [[this.toX(this.x[j][at]), this.toY(this.y[j][at])]]));
      way.push([this.toX(x), this.toY(y)]);
      this.trails[j].setAttribute("d", `M${way.map(([left, top]) => `${left.toFixed(1)} ${top.toFixed(1)}`).join("L")}`);
      ball.setAttribute("cx", this.toX(x));
      ball.setAttribute("cy", this.toY(y));
      this.names[j]?.setAttribute("x", this.toX(x) + 10);
      this.names[j]?.setAttribute("y", this.toY(y) - 8);
    }
    const where = this.x.slice(0, 12).map((xs, j) => `${j + 1}: ${number(interpolate(times, xs, time), 2)}, ${number(interpolate(times, this.y[j], time), 2)}`);
    this.svg.setAttribute("aria-label", `Neurons at time ${number(time)}. ${where.join("; ")}.`);
  }
}


function ticks(low, high) {
  const step = [0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50, 100].find((size) => (high - low) / size <= 6) ?? (high - low) / 5;
  return Array.from({ length: Math.floor(high / step) - Math.ceil(low / step) + 1 }, (_, at) => Math.round((Math.ceil(low / step) + at) * step * 1e6) / 1e6);
}

/** Heat maps of M and Q at one time, for more neurons than lines can show. */
export class HeatMaps {
  constructor(element) {
    Object.assign(this, { element, curve: null, maps: [] });
  }

  show(curve) {
    this.curve = curve;
    const { p, k } = lengths(curve);
    this.words = h("p", { class: "help" });
    this.maps = [["M", p, k, "M: rows are neurons, columns are units of the target"], ["Q", p, p, "Q: rows and columns are neurons"]].map(([name, rows, columns, words]) => {
      const canvas = h("canvas", { width: columns, height: rows, role: "img", "aria-label": words });
      const figure = h("figure", {}, h("figcaption", {}, name), canvas);
      figure.style.flexGrow = columns; // so that both have one height
      return { name, rows, columns, canvas, words, figure };
    });
    this.element.replaceChildren(h("div", { class: "heat" }, this.maps.map((map) => map.figure)), this.words);
  }

  at(time) {
    if (this.curve === null) return;
    const limits = [];
    for (const { name, rows, columns, canvas, words } of this.maps) {
      const values = Array.from({ length: rows * columns }, (_, at) => entryAt(this.curve, name, time, Math.floor(at / columns), at % columns) ?? 0);
      const largest = Math.max(1e-12, ...values.map(Math.abs));
      const image = new ImageData(columns, rows);
      values.forEach((value, at) => image.data.set([...diverging(value / largest), 255], 4 * at));
      canvas.getContext("2d").putImageData(image, 0, 0);
      limits.push(`${words}; blue up to ${number(largest)}, orange down to ${number(-largest)}.`);
    }
    this.words.textContent = limits.join(" ");
  }
}
