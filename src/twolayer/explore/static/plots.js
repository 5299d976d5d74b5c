// Plots against time: uPlot with our axes, bands, a line at the chosen time, and sizes that follow the page.

import { css } from "./palette.js";
import { h, number, raised } from "./dom.js";

const FONT = '13px "Source Sans", sans-serif';

/** A line to draw: {name, x, y, colour, dash, width, low, high, fill}. `low` and `high` are a band around it. */
export class Plot {
  constructor(element, { onCursor, onZoom, height }) {
    Object.assign(this, { element, onCursor, onZoom, height, chart: null, signature: "", marker: null, lines: [], options: {} });
    this.width = 0;
    new ResizeObserver(() => this.resize()).observe(element);
  }

  /** Draw lines; `options` = {xLog, yLog, xLabel, fromZero, zoom}. */
  draw(lines, options) {
    this.lines = lines;
    this.options = options;
    const signature = JSON.stringify([options.xLog, options.yLog, options.xLabel, options.fromZero, document.documentElement.dataset.theme,
      lines.map((line) => [line.colour, line.dash, line.width, line.fill, Boolean(line.low)])]);
    const data = aligned(lines, options);
    if (data === null) return this.clear(options.empty ?? "");
    this.element.querySelector(".nothing")?.remove();
    if (signature !== this.signature || this.chart === null) this.build(signature, data);
    else this.quietly(() => this.chart.setData(data, true));
    this.zoomTo(options.zoom);
  }

  /** The ends of the horizontal axis; none without curves. */
  get whole() {
    const all = this.chart?.data[0] ?? [];
    return [all[0], all.at(-1)];
  }

  clear(words) {
    this.chart?.destroy();
    this.chart = null;
    this.signature = "";
    this.element.replaceChildren(h("p", { class: "nothing" }, words));
  }

  mark(x) {
    if (this.marker === x) return;
    this.marker = x;
    this.chart?.redraw(false);
  }

  build(signature, data) {
    this.chart?.destroy();
    this.signature = signature;
    const { xLog, yLog, xLabel, fromZero } = this.options;
    const series = [{}];
    const bands = [];
    for (const line of this.lines) {
      series.push({ stroke: line.colour, width: line.width, dash: line.dash, spanGaps: true, pxAlign: 0, points: { show: false } });
      if (!line.low) continue;
      const hidden = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } };
      bands.push({ series: [series.length + 1, series.length], fill: line.fill });
      series.push(hidden, { ...hidden });
    }
    const axis = (isLog, more) => ({ stroke: css("--soft"), font: FONT, labelFont: FONT, grid: { stroke: css("--grid"), width: 1, filter: (_, at) => lined(at, isLog) },
      ticks: { stroke: css("--grid"), width: 1, size: 5, filter: (_, at) => lined(at, isLog) }, values: (_, at) => named(at, isLog), ...more });
    this.chart = new window.uPlot({
      width: this.element.clientWidth, height: this.height(), legend: { show: false }, series, bands, padding: [10, 14, 0, 0],
      scales: { x: { time: false, distr: xLog ? 3 : 1, range: (_, low, high) => this.range(low, high) },
        y: { distr: yLog ? 3 : 1, range: (_, low, high) => around(low, high, yLog, fromZero) } },
      axes: [axis(xLog, { label: xLabel, labelSize: 20, size: 34, labelGap: 0 }), axis(yLog, { size: 58 })],
      cursor: { drag: { x: true, y: false, setScale: true }, sync: { key: "twolayer", scales: ["x", null] }, points: { show: false }, y: false },
      hooks: { setCursor: [(chart) => this.onCursor(chart.cursor.left >= 0 ? chart.posToVal(chart.cursor.left, "x") : null)],
        setScale: [(chart, key) => this.scaled(chart, key)], draw: [(chart) => this.line(chart)] },
    }, data, this.element);
    this.quiet = false;
  }

  /** The whole range, or a part of it that was chosen by dragging; uPlot asks for the whole with the limits of its data. */
  range(low, high) {
    if (low === null || !(high > low)) return [low ?? 0, (high ?? 1) + 1e-9];
    return [low, high];
  }

  scaled(chart, key) {
    if (key !== "x" || this.quiet || !chart.data[0].length) return;
    const { min, max } = chart.scales.x;
    const all = chart.data[0];
    const whole = Math.abs(min - all[0]) <= 1e-9 * Math.abs(all.at(-1)) && Math.abs(max - all.at(-1)) <= 1e-9 * Math.abs(all.at(-1));
    this.onZoom(whole ? null : [min, max]);
  }

  quietly(act) {
    this.quiet = true;
    act();
    queueMicrotask(() => { this.quiet = false; });
  }

  zoomTo(zoom) {
    if (this.chart === null) return;
    const all = this.chart.data[0];
    const isSeen = zoom !== null && zoom[0] < all.at(-1) && zoom[1] > all[0];
    const [min, max] = isSeen ? zoom : [all[0], all.at(-1)];
    this.quietly(() => this.chart.setScale("x", { min, max })); // also where it is the same: new data ask for all of it
  }

  /** The line at the chosen time, with a dot on every curve. */
  line(chart) {
    if (this.marker === null) return;
    const at = chart.valToPos(this.marker, "x", true);
    const { left, top, width, height } = chart.bbox;
    if (!(at >= left - 1 && at <= left + width + 1)) return;
    const ratio = window.uPlot.pxRatio;
    const pen = chart.ctx;
    pen.save();
    pen.strokeStyle = css("--strong-line");
    pen.lineWidth = ratio;
    pen.setLineDash([3 * ratio, 3 * ratio]);
    pen.beginPath();
    pen.moveTo(at, top);
    pen.lineTo(at, top + height);
    pen.stroke();
    pen.setLineDash([]);
    for (const line of this.lines.filter((item) => item.name && !item.errors)) {
      const value = interpolate(line.x, line.y, this.marker);
      if (value === null || (this.options.yLog && value <= 0)) continue;
      const y = chart.valToPos(value, "y", true);
      if (y < top || y > top + height) continue;
      pen.beginPath();
      pen.arc(at, y, 4 * ratio, 0, 2 * Math.PI);
      pen.fillStyle = line.colour;
      pen.strokeStyle = css("--card");
      pen.lineWidth = 1.5 * ratio;
      pen.fill();
      pen.stroke();
    }
    pen.restore();
  }

  resize() {
    if (this.chart === null || this.element.clientWidth === this.width) return;
    this.width = this.element.clientWidth;
    this.quietly(() => this.chart.setSize({ width: this.width, height: this.height() }));
  }

  again() {
    this.signature = "";
    if (this.chart !== null) this.draw(this.lines, this.options);
  }
}

const tick = (value) => (value === null || value === undefined ? "" : number(value, 3));
const isPower = (value) => value > 0 && Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9;

/** Over some decades only powers of ten are named and have a line; over fewer, what uPlot proposes. */
function named(at, isLog) {
  const powers = at.filter((value) => value !== null && isPower(value));
  if (!isLog || powers.length < 3) return at.map(tick);
  return at.map((value) => (value !== null && isPower(value) ? `10${raised(Math.round(Math.log10(value)))}` : ""));
}
const lined = (at, isLog) => (isLog && at.filter((value) => value !== null && isPower(value)).length >= 3 ? at.map((value) => (isPower(value) ? value : null)) : at);

/** One table with the union of all x, as uPlot wants it. Logarithmic axes leave out what is not positive. */
function aligned(lines, { xLog, yLog }) {
  const smallest = yLog ? Math.min(...lines.flatMap((line) => line.y.filter((value) => value > 0))) / 3 : 0;
  const shown = (value) => (value === null || (yLog && !(value > 0)) ? null : value);
  const raised = (value) => (value === null ? null : yLog ? Math.max(value, smallest) : value);
  const tables = lines.map((line) => {
    const kept = line.x.flatMap((x, at) => (x === null || (xLog && !(x > 0)) ? [] : [at]));
    const table = [kept.map((at) => line.x[at]), kept.map((at) => shown(line.y[at]))];
    if (line.low) table.push(kept.map((at) => raised(line.low[at])), kept.map((at) => raised(line.high[at])));
    return table;
  }).filter((table) => table[0].length);
  if (tables.length !== lines.length || !tables.length || !tables.some((table) => table[1].some((value) => value !== null))) return null;
  return tables.length === 1 ? tables[0] : window.uPlot.join(tables);
}

function around(low, high, isLog, fromZero) {
  if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1];
  if (isLog) {
    // One digit, since uPlot looks for ticks without end from a number such as 9.7e-4 on.
    const unit = 10 ** Math.floor(Math.log10(low / 1.4));
    return [Math.floor(low / 1.4 / unit) * unit, high * 1.4];
  }
  // Rounding errors around a constant would fill the plot, with ticks that no number can tell apart.
  const isConstant = high - low <= 1e-6 * Math.max(Math.abs(low), Math.abs(high));
  const room = isConstant ? 0.5 : (high - low) * 0.06;
  return [fromZero && low >= 0 ? 0 : low - room, high + room];
}

/** The value of a curve at x; null outside of it. */
export function interpolate(xs, ys, x) {
  if (x === null || !xs.length || x < xs[0] || x > xs.at(-1) * (1 + 1e-9)) return null;
  let low = 0;
  let high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] <= x) low = middle;
    else high = middle;
  }
  if (ys[low] === null || ys[high] === null) return ys[low] ?? null;
  const share = xs[high] === xs[low] ? 1 : (Math.min(x, xs[high]) - xs[low]) / (xs[high] - xs[low]);
  return ys[low] + share * (ys[high] - ys[low]);
}
