// The left side: one control for each field of the specification that the server's form names.

import { h, later, math, number, parsed, plural, spoken, typed, typeset } from "./dom.js";
import { choiceOf, kindOf, phases, read, write } from "./state.js";

const OPEN_AT_FIRST = ["target", "student", "inputs", "training", "run"];
const WAIT = 140; // milliseconds after a letter, before the page asks

/** Builds the form and keeps it equal to a specification; `onChange(path)` is called after the user changed it. */
export class Controls {
  constructor(element, form, { spec, onChange, check }) {
    Object.assign(this, { element, form, spec, onChange, check, fields: [], reasons: {} });
    this.groups = form.groups.map((group) => this.group(group));
    element.replaceChildren(...this.groups.map(({ details }) => details));
    this.show();
  }

  group({ id, title, controls }) {
    const fields = controls.map((control) => FIELDS[control.kind](control, this));
    if (id === "run") fields.push(descriptions(this));
    this.fields.push(...fields);
    const summary = h("small", {});
    const reason = h("p", { class: "help", "data-reason": id, hidden: true });
    const details = h("details", { class: "group", open: innerWidth > 860 ? OPEN_AT_FIRST.includes(id) : id === "training", "data-group": id },
      h("summary", {}, h("span", {}, title), summary), h("div", { class: "fields" }, reason, fields.map(({ node }) => node)));
    return { id, details, summary, reason, fields };
  }

  /** Another specification: every control shows its value. */
  set(spec) {
    this.spec = spec;
    this.show();
  }

  change(path, value) {
    write(this.spec, path, value);
    this.show();
    this.onChange(path);
  }

  /** What a control shows: its own value, or the default where the specification leaves it out. */
  value(control) {
    return read(this.spec, control.path) ?? control.default;
  }

  isShown({ shown_when: when }) {
    if (!when) return true;
    const control = this.form.groups.flatMap(({ controls }) => controls).find(({ path }) => path === when.path);
    const stated = read(this.spec, when.path) ?? control?.default ?? null;
    return when.in.includes(control?.kind === "object" ? choiceOf(control, stated)?.value ?? kindOf(stated) : kindOf(stated));
  }

  show() {
    for (const { id, summary, reason, fields } of this.groups) {
      const number = id === "training" ? phases(this.spec) : 0;
      reason.hidden = !number;
      reason.replaceChildren(...spoken(number ? `Training is a schedule of ${plural(number, "phase")}, which no control here changes: write its \`[[training.phases]]\` in a specification file, and open that.` : ""));
      for (const field of fields) {
        field.node.hidden = number > 0 || (!field.isAlways && !this.isShown(field.control ?? {}));
        field.show();
      }
      const shown = fields.filter(({ node, short }) => short && !node.hidden).map(({ short }) => short());
      summary.textContent = number ? `schedule of ${plural(number, "phase")}` : shown.filter(Boolean).slice(0, 3).join(", ");
    }
  }

  /** Mark the control that a refusal names; `field` may be a path or the last part of one. */
  refuse(refusal) {
    for (const field of this.fields) {
      const path = field.control?.path;
      const named = refusal?.field;
      const isMeant = Boolean(path && named) && (path === named || path.endsWith(`.${named}`));
      field.mark?.(isMeant ? refusal.message : "");
    }
  }

  /** The answer of `explain` says why a description does not apply. */
  explain(rows) {
    this.reasons = Object.fromEntries(rows.map((row) => [row.description, row]));
    this.fields.find(({ isDescriptions }) => isDescriptions).show();
  }
}

// ------------------------------------------------------------------------------------------------- parts of controls

const latex = (symbol) => (symbol === "#" ? "\\#" : symbol.replace("*", "^{*}").replace("n_b", "n_b").replace("|w|", "|w|"));

/** The head, the help and the note of a control around its input. */
function frame(control, owner, inputs, { labelFor }) {
  const id = `help-${control.id}`;
  const note = h("p", { class: "problem-note", id: `note-${control.id}`, hidden: true });
  const usual = h("button", { type: "button", class: "default", onclick: () => owner.change(control.path, control.kind === "object" ? tableOf(control, control.default) : null) });
  const name = labelFor === null ? h("span", { class: "name", id: `label-${control.id}` }, control.label) : h("label", { for: labelFor }, control.label);
  const node = h("div", { class: "field", "data-field": control.id },
    h("div", { class: "field-head" }, name, math(latex(control.symbol), { text: control.symbol }), control.unit ? h("span", { class: "unit" }, control.unit) : "", usual),
    inputs, note, h("p", { class: "help", id }, control.help));
  const mark = (message, input) => {
    note.replaceChildren(...spoken(message));
    note.hidden = !message;
    input.setAttribute("aria-invalid", String(Boolean(message)));
  };
  const state = () => {
    const stated = read(owner.spec, control.path);
    const isUsual = stated === undefined || kindOf(stated) === control.default || (control.kind === "object" && choiceOf(control, stated)?.value === control.default);
    const words = control.kind === "object" || control.kind === "choice" ? labelOf(control, control.default) : control.kind === "matrix" ? "" : typed(control.default);
    usual.textContent = words ? `default ${words}` : control.default === null ? "" : "";
    usual.disabled = isUsual || control.default === null;
    usual.hidden = !usual.textContent;
    usual.title = usual.disabled ? "" : `Set ${control.label.toLowerCase()} back to its default`;
  };
  return { node, mark, state };
}

const labelOf = (control, value) => control.choices.find((choice) => choice.value === value)?.label ?? (value === null ? "" : String(value));
const tableOf = (control, value) => control.choices.find((choice) => choice.value === value)?.table ?? null;

/** A text field for a number, with arrow keys, and a slider where there are limits. */
function numeric(control, owner) {
  const isLog = control.kind.startsWith("log");
  const isWhole = control.kind.endsWith("integer");
  const input = h("input", { type: "text", id: control.id, inputmode: isWhole ? "numeric" : "decimal", "data-testid": control.testid, "aria-describedby": `help-${control.id} note-${control.id}`, spellcheck: false });
  const { low, high } = control;
  const hasSlider = low !== null && high !== null && (isLog || high <= 400);
  const steps = isLog ? 600 : isWhole ? high - low : 100;
  const slider = hasSlider ? h("input", { type: "range", min: 0, max: steps, step: 1, "aria-label": `${control.label}, slider`, "data-testid": `${control.testid}-slider` }) : null;
  const at = (share) => (isLog ? low * (high / low) ** share : low + (high - low) * share);
  const share = (value) => (isLog ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
  const round = (value) => (isWhole ? Math.round(isLog && value >= 100 ? Number(value.toPrecision(3)) : value) : Number(value.toPrecision(3)));
  const tell = later(WAIT, () => { if (input.value.trim() !== "") owner.change(control.path, parsed(input.value)); });
  const say = (value) => slider?.setAttribute("aria-valuetext", `${number(value)} ${control.unit}`);
  input.addEventListener("input", () => tell());
  input.addEventListener("change", () => {
    tell.cancel();
    const value = input.value.trim() === "" ? control.default : parsed(input.value);
    if (value !== owner.value(control)) owner.change(control.path, value);
    else input.value = typed(value);
  });
  input.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    const value = owner.value(control);
    if (!way || typeof value !== "number") return;
    event.preventDefault();
    const next = isWhole && !isLog ? value + way : isLog ? stepped(value, way, isWhole) : round(value + (way * ((high ?? 1) - (low ?? 0))) / 100);
    owner.change(control.path, Math.min(high ?? next, Math.max(low ?? next, next)));
  });
  slider?.addEventListener("input", () => {
    const value = round(at(slider.value / steps));
    input.value = typed(value);
    say(value);
    owner.change(control.path, value);
  });
  const { node, mark, state } = frame(control, owner, slider ? h("div", { class: "pair" }, slider, input) : input, { labelFor: control.id });
  const show = () => {
    const value = owner.value(control);
    if (document.activeElement !== input || parsed(input.value) !== value) input.value = typed(value);
    if (slider && typeof value === "number") {
      if (document.activeElement !== slider || round(at(slider.value / steps)) !== value) slider.value = Math.round(Math.min(1, Math.max(0, share(value))) * steps);
      say(value);
    }
    state();
  };
  return { node, control, show, mark: (message) => mark(message, input), short: () => `${control.symbol} = ${number(owner.value(control))}` };
}

/** The next number with one digit: 1, 2, 5, 10, ... */
function stepped(value, way, isWhole) {
  const places = [1, 2, 5, 10].map((digit) => digit * 10 ** Math.floor(Math.log10(value) + 1e-9));
  const next = way > 0 ? places.find((place) => place > value * (1 + 1e-9)) : [places[0] / 2, ...places].findLast((place) => place < value * (1 - 1e-9));
  return isWhole ? Math.max(1, Math.round(next)) : Number(next.toPrecision(2));
}

function select(control, owner) {
  const isObject = control.kind === "object";
  const input = h("select", { id: control.id, "data-testid": control.testid, "aria-describedby": `help-${control.id} note-${control.id}` },
    control.choices.map((choice) => h("option", { value: String(choice.value), title: choice.help ?? "" }, choice.label)));
  input.addEventListener("change", () => {
    const choice = control.choices.find(({ value }) => String(value) === input.value);
    if (choice) owner.change(control.path, isObject ? choice.table : choice.value);
  });
  const { node, mark, state } = frame(control, owner, input, { labelFor: control.id });
  const help = node.querySelector(".help");
  const show = () => {
    const stated = owner.value(control);
    const value = isObject ? kindOf(stated) : stated;
    const choice = isObject ? choiceOf(control, stated) : control.choices.find((item) => item.value === value);
    input.querySelector("option[data-own]")?.remove();
    if (!choice) input.append(h("option", { value: "\u0000own", "data-own": "" }, isObject ? String(value ?? "other") : typeof value === "string" ? value : "from the specification"));
    input.value = choice ? String(choice.value) : "\u0000own";
    help.textContent = choice?.help ? `${control.help.replace(/\.$/, "")}: ${choice.help}.` : control.help;
    state();
  };
  return { node, control, show, mark: (message) => mark(message, input), short: () => input.selectedOptions[0]?.textContent ?? "" };
}

function toggle(control, owner) {
  const input = h("input", { type: "checkbox", id: control.id, "data-testid": control.testid, "aria-describedby": `help-${control.id} note-${control.id}` });
  input.addEventListener("change", () => owner.change(control.path, input.checked));
  const { node, mark, state } = frame(control, owner, input, { labelFor: control.id });
  return { node, control, show: () => { input.checked = Boolean(owner.value(control)); state(); }, mark: (message) => mark(message, input) };
}

function matrix(control, owner) {
  const input = h("textarea", { id: control.id, rows: 2, "data-testid": control.testid, placeholder: "[[1, 0.5], [0.5, 1]]", spellcheck: false, "aria-describedby": `help-${control.id} note-${control.id}` });
  const { node, mark, state } = frame(control, owner, input, { labelFor: control.id });
  input.addEventListener("change", () => {
    const text = input.value.trim();
    let value = null;
    try {
      value = text ? JSON.parse(text) : null;
    } catch {
      mark("A matrix is written as rows of numbers, such as [[1, 0.5], [0.5, 1]].", input);
      return;
    }
    mark("", input);
    owner.change(control.path, value);
  });
  const show = () => {
    if (document.activeElement !== input) input.value = typed(read(owner.spec, control.path) ?? null);
    state();
  };
  return { node, control, show, mark: (message) => mark(message, input) };
}

/** The formula of a target: checked while one types; the target follows when it can be read. */
function formula(control, owner) {
  const input = h("input", { type: "text", class: "code", id: control.id, "data-testid": control.testid, spellcheck: false, autocapitalize: "off", "aria-describedby": `help-${control.id} note-${control.id}` });
  const typesetAs = h("div", { class: "formulas", hidden: true });
  const caret = h("div", { class: "caret", hidden: true, tabIndex: 0, role: "group", "aria-label": "Where the mistake is" });
  const { node, mark, state } = frame(control, owner, [input, caret, typesetAs], { labelFor: control.id });
  const point = (text, position) => {
    caret.hidden = position === null || position === undefined;
    if (caret.hidden) return;
    const [wrong] = /^[\w.]+|^.?/.exec(text.slice(position)); // the whole name or number
    caret.replaceChildren(text.slice(0, position), h("mark", {}, wrong || " "), text.slice(position + wrong.length));
  };
  let isTyped = false;
  const judge = async (isMine) => {
    const text = input.value;
    const answer = await owner.check(text, isMine);
    if (answer === null || text !== input.value) return;
    mark(answer.ok ? "" : `${answer.message}${answer.where}`, input);
    point(text, answer.ok ? null : answer.position);
    typesetAs.hidden = !(answer.ok && answer.latex);
    if (!typesetAs.hidden) typeset(typesetAs, answer.latex.includes("=") ? answer.latex : `f(z) = ${answer.latex}`);
    if (!answer.ok || !isMine) return;
    isTyped = false;
    owner.change("problem.target", answer.target);
  };
  const soon = later(WAIT, judge);
  input.addEventListener("input", () => { isTyped = true; soon(true); });
  let shown = null;
  const show = () => {
    const stated = read(owner.spec, control.path);
    if (!isTyped || document.activeElement !== input) {
      input.value = stated ?? "";
      isTyped = false;
    }
    input.placeholder = stated === undefined ? `such as ${control.default}` : "";
    if (stated !== shown && !isTyped) {
      shown = stated;
      mark("", input);
      point("", null);
      typesetAs.hidden = true;
      if (stated) judge(false);
    }
    state();
    node.querySelector(".default").hidden = true;
  };
  return { node, control, show, isAlways: true, mark: () => {}, short: () => input.value };
}

/** What to run: a box for each theory and simulation, with the reason where one does not apply. */
function descriptions(owner) {
  const rows = owner.form.descriptions.map(({ id, title, help, kind }) => {
    const input = h("input", { type: "checkbox", id: `run-${id}`, "data-testid": `run-${id}`, "aria-describedby": `why-${id}` });
    input.addEventListener("change", () => {
      const chosen = owner.form.descriptions.map((item) => item.id).filter((name) => document.getElementById(`run-${name}`).checked);
      const own = (read(owner.spec, "run.descriptions") ?? []).filter((item) => typeof item !== "string" && chosen.includes(kindOf(item)));
      owner.change("run.descriptions", chosen.map((name) => own.find((item) => kindOf(item) === name) ?? name));
    });
    const why = h("p", { class: "help", id: `why-${id}` }, help);
    return { id, input, why, help, node: h("div", { class: "field" }, h("label", { class: "check", for: `run-${id}` }, input, h("span", {}, `${title} `, h("small", {}, kind))), why) };
  });
  const node = h("fieldset", { class: "field plain" }, h("legend", { class: "name" }, "Theories and simulations"), rows.map((row) => row.node));
  const show = () => {
    const chosen = (read(owner.spec, "run.descriptions") ?? []).map(kindOf);
    for (const { id, input, why, help } of rows) {
      input.checked = chosen.includes(id);
      const reason = owner.reasons[id];
      const isRefused = reason && !reason.applies;
      why.replaceChildren(...spoken(isRefused ? `Does not apply: ${reason.statement}` : help));
      why.className = isRefused && input.checked ? "help problem-note" : "help";
    }
  };
  return { node, show, isDescriptions: true, short: () => plural((read(owner.spec, "run.descriptions") ?? []).length, "curve") };
}

const FIELDS = { number: numeric, log: numeric, integer: numeric, "log-integer": numeric, choice: select, object: select, formula, switch: toggle, matrix };
