// The answers that are words and tables: verdict, explain, what will be learned, escape, equations.

import { $, h, math, number, spoken, typeset } from "./dom.js";

const body = (name) => $(name).querySelector(".body");
const put = (name, ...children) => body(name).replaceChildren(...children.flat().filter(Boolean));
export const waiting = (name, words) => put(name, h("p", { class: "empty" }, words));
export const refused = (name, message) => put(name, h("p", { class: "empty" }, spoken(message)));

/** A table; cells are texts or elements. */
function table(head, rows, label, className = null) {
  return h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, h("table", { class: className },
    h("thead", {}, h("tr", {}, head.map((words) => h("th", { scope: "col" }, words)))),
    h("tbody", {}, rows.map(({ cells, className }) => h("tr", { class: className ?? null }, cells.map((cell) => (cell instanceof Element && cell.tagName === "TD" ? cell : h("td", {}, cell))))))));
}

const report = (text, words) => (text ? h("details", { class: "report" }, h("summary", {}, words), h("pre", {}, text)) : null);
const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter(Boolean).map(([words, value]) => h("div", {}, h("dt", {}, words), h("dd", {}, value))));
const list = (sentences, className = null) => (sentences?.length ? h("ul", { class: className }, sentences.map((words) => h("li", {}, spoken(words)))) : null);

// ------------------------------------------------------------------------------------------------------------ verdict

export function verdict({ verdict: judged, deviations = [] }) {
  if (!judged?.outcome) return waiting("verdict", judged?.sentence ?? "A verdict needs a theory and a simulation: choose both under “What to run”.");
  const rows = deviations.map(({ name, largest, threshold }) => ({ cells: [name, number(largest, 2), number(threshold, 2)] }));
  put("verdict", h("p", {}, h("span", { class: "verdict-word", "data-outcome": judged.outcome }, judged.outcome)), h("p", {}, spoken(judged.sentence)),
    rows.length ? table(["theory", "largest deviation of the risk, in standard errors", "allowed"], rows, "Deviations") : null);
}

// ------------------------------------------------------------------------------------------------------------ explain

const duration = (seconds) => (seconds === null || seconds === undefined ? "" : seconds < 1 ? "under a second" : seconds < 90 ? `about ${number(seconds, 1)} s` : seconds < 5400 ? `about ${number(seconds / 60, 1)} min` : `about ${number(seconds / 3600, 1)} h`);

export function explain({ clock, notes = [], descriptions, moments = [], cautions = [] }, titles) {
  const rows = [...descriptions].sort((one, other) => other.applies - one.applies).map((row) => ({ className: row.applies ? null : "off", cells: [
    h("td", {}, titles[row.description] ?? row.description, titles[row.description] ? h("br") : "", " ", titles[row.description] ? h("small", {}, row.description) : ""),
    row.applies ? (row.cautions?.length ? h("span", { class: "careful" }, "yes, with caution") : h("span", { class: "yes" }, "yes")) : h("span", { class: "no" }, "no"),
    h("td", { class: "time" }, row.applies ? duration(row.seconds) : ""),
    h("td", { class: "reason" }, h("div", {}, spoken(sentence(row.statement))), (row.cautions ?? []).map((words) => h("div", { class: "caution" }, spoken(words)))),
  ] }));
  const averages = moments.map((row) => ({ cells: [row.moment, number(row.fields), row.engine, number(row.error, 2)] }));
  put("explain", h("p", {}, clock), list(notes), table(["description", "applies", "time", "how exactly, or why not"], rows, "Descriptions", "stack"),
    cautions.map((words) => h("p", { class: "caution" }, spoken(words))),
    averages.length ? h("details", { class: "report" }, h("summary", {}, "Gaussian averages and who computes them"), table(["average", "fields", "computed by", "error at the start"], averages, "Averages")) : null);
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

// ------------------------------------------------------------------------------------------------ what will be learned

const exponent = (value, possible) => (value === null || value === undefined ? (possible?.length ? possible.join(" or ") : "undecided") : number(value));
const power = (text) => math(text.replace(/d\^\(?([\w./-]+)\)?/g, "d^{$1}").replaceAll("log d", "\\log d").replaceAll("*", " "), { text });
const scaling = (text) => (/^[\d\s./d^()*+-]*(log d)?[\d\s./d^()*]*$/.test(text ?? "") && /\d|d/.test(text) ? power(text) : text ?? "");

export function learn(answer) {
  const order = answer.order ?? [];
  const stages = order.map((stage) => h("li", {}, h("span", {}, h("b", {}, stage.directions.join(", ")), ` through correlations of order ${stage.leap}`)));
  const online = answer.scalings?.[0];
  const rows = (answer.scalings ?? []).filter((row) => row.samples).map((row) => ({ cells: [row.protocol, scaling(row.steps), scaling(row.samples)] }));
  put("learn",
    facts([["information exponent", exponent(answer.information_exponent, answer.possible_information_exponents)], ["leap", exponent(answer.leap)],
      answer.generative_exponent === undefined ? null : ["generative exponent", exponent(answer.generative_exponent)],
      online ? ["samples needed, each used once", power(online.samples)] : null]),
    stages.length ? [h("p", {}, stages.length > 1 ? "The directions are found one after the other:" : "The directions are found together:"), h("ol", { class: "steps" }, stages)] : h("p", {}, "Correlations with the label reveal no direction."),
    list(answer.notes),
    answer.unseen_directions?.length ? h("p", {}, `Directions that no stage contains: ${answer.unseen_directions.length}.`) : null,
    rows.length ? h("details", { class: "report" }, h("summary", {}, "Steps and samples of each way of training"), table(["training", "steps", "samples"], rows, "Steps and samples")) : null,
    report(answer.report, "The whole report"));
}

// ------------------------------------------------------------------------------------------------------------- escape

const ESTIMATES = [["annealed", "annealed, linearised"], ["quenched", "quenched, linearised"], ["quenched_with_noise", "quenched, with the noise of SGD"], ["ode", "ODE"],
  ["ode_with_noise", "ODE, with the noise of SGD"], ["ode_at_finite_d", "ODE, with the noise of SGD at this d"]];

/** Closed forms, each with what it says. */
function forms(formulas) {
  if (!formulas?.length) return null;
  const rows = formulas.map(({ words, latex }) => h("div", {}, h("dt", {}, words), typesetIn(h("dd", {}), latex)));
  return h("div", { class: "formulas", tabIndex: 0, role: "region", "aria-label": "Closed forms" }, h("dl", { class: "forms" }, rows));
}

const typesetIn = (element, latex, text = latex) => {
  typeset(element, `\\displaystyle ${latex}`, { text });
  return element;
};

export function escape(answer) {
  const rows = ESTIMATES.filter(([name]) => typeof answer[name] === "number").map(([name, words]) => ({ cells: [words, number(answer[name], 4), number(answer.errors?.[name], 1), number(answer.steps?.[name], 4)] }));
  put("escape", answer.definition ? h("p", {}, `Escape: ${answer.definition}.`) : null,
    facts([["learning rate", number(answer.learning_rate)], answer.optimal_learning_rate ? ["optimal learning rate", number(answer.optimal_learning_rate)] : null,
      answer.maximal_learning_rate ? ["largest that escapes", number(answer.maximal_learning_rate)] : null,
      answer.growth_rate ? ["growth rate of m²", number(answer.growth_rate)] : null]),
    rows.length ? table(["estimate", "time", "numerical error", "steps"], rows, "Times of escape") : null, forms(answer.formulas), list(answer.notes), report(answer.report, "The whole report"));
}

// ---------------------------------------------------------------------------------------------------------- equations

export function equations(answer) {
  const rows = answer.equations.map(({ latex, text }) => typesetIn(h("div", {}), latex, text));
  put("equations", list(answer.assumptions), h("div", { class: "formulas", tabIndex: 0, role: "region", "aria-label": "Equations of motion" }, rows));
}
