// Sentences about a specification and about what is under way.

import { number, plural } from "./dom.js";
import { choiceOf, kindOf, phases, read } from "./state.js";

const named = (value) => (typeof value === "string" ? value : value?.kind ?? "own");

function target(spec) {
  const stated = read(spec, "problem.target");
  const kind = kindOf(stated);
  if (kind === "Committee") return `a committee of ${plural(read(spec, "problem.target.k") ?? 1, `${named(stated.activation)} unit`)}`;
  if (kind === "PhaseRetrieval") return "phase retrieval, the square of one field";
  if (kind === "MultiIndex" || kind === "SingleIndex") return `the target ${stated.function ?? stated.link ?? ""}`.trim();
  return `the target ${kind}`;
}

/** A title for a setting that nobody named. */
export function headline(spec) {
  const of = target(spec).replace(/^the target /, "");
  const activation = named(read(spec, "problem.student.activation") ?? "");
  const p = read(spec, "problem.student.p") ?? 1;
  return p === 1 ? `One ${activation} neuron learns ${of}` : `${number(p)} ${activation} neurons learn ${of}`;
}

/** What is learned, by whom and from what, in one sentence. */
export function sentence(spec) {
  const p = read(spec, "problem.student.p") ?? 1;
  const neurons = `${p === 1 ? "one" : number(p)} ${named(read(spec, "problem.student.activation") ?? "")} neuron${p === 1 ? "" : "s"}`;
  const batch = read(spec, "training.batch_size") ?? 1;
  const reuse = kindOf(read(spec, "training.reuse"));
  const samples = phases(spec) ? `in a schedule of ${plural(phases(spec), "phase")}` : reuse === "Reused" ? "from one fixed set of samples" : batch === 1 ? "one sample a step" : `${number(batch)} samples a step`;
  const sphere = kindOf(read(spec, "training.constraint")) === "Sphere" ? ", on the sphere" : "";
  const own = kindOf(read(spec, "problem.loss")) ?? "Square";
  const loss = own === "Square" ? "" : `, with the ${own === "Huber" ? own : String(own).toLowerCase()} loss`;
  const words = `${neurons} learn${p === 1 ? "s" : ""} ${target(spec)} in ${number(read(spec, "problem.inputs.d"))} dimensions, ${samples}${sphere}${loss}.`;
  return words[0].toUpperCase() + words.slice(1);
}

const WORK = { theory: "Computing", simulate: "Simulating with", compare: "Simulating and comparing", explain: "Asking what applies", learn: "Analysing the target", escape: "Computing the times of escape", equations: "Deriving the equations", check: "Reading the formula" };
const ORDER = ["theory", "simulate", "compare"];

/** The status of the body, and the words for it. */
export function status(tasks, titles) {
  if (!tasks.length) return { status: "idle", words: "Ready" };
  const name = (task) => `${titles[task.of] ?? task.of ?? ""}`;
  const compiling = tasks.find(({ state }) => state === "compiling");
  if (compiling) {
    const usual = compiling.usual_seconds ? ` (usually about ${number(compiling.usual_seconds, 1)} s)` : "";
    return { status: "compiling", words: `Compiling ${compiling.what ?? name(compiling)}${usual}` };
  }
  const waiting = tasks.find(({ state, position }) => state === "queued" && position > 1);
  const working = [...ORDER, ...Object.keys(WORK)].map((kind) => tasks.find((task) => task.kind === kind)).find(Boolean);
  if (waiting && (!working || working.state === "queued")) return { status: "computing", words: `Busy, in line: place ${waiting.position}` };
  const share = working?.state === "progress" && working.fraction > 0 ? `, ${Math.round(100 * working.fraction)}%` : "";
  const part = working?.kind === "compare" && share && titles[working.words] ? `: ${titles[working.words]}` : "";
  return { status: "computing", words: working ? `${WORK[working.kind]}${working.of ? ` ${name(working)}` : ""}${part}${share}` : "Computing" };
}

const NUMERIC = ["number", "log", "integer", "log-integer"];

/** In what one specification differs from another, in the symbols of the controls. */
export function differences(spec, other, form) {
  const controls = form.groups.flatMap((group) => group.controls);
  const value = (from, control) => {
    const stated = read(from, control.path) ?? control.default;
    if (control.kind === "object") return choiceOf(control, stated)?.value ?? kindOf(stated);
    // Where another kind of object stands, a number of this one is none.
    return NUMERIC.includes(control.kind) && typeof stated === "object" ? control.default : stated;
  };
  const plan = (from) => (phases(from) ? JSON.stringify(read(from, "training")) : "");
  const isSchedule = plan(spec) !== "" || plan(other) !== "";
  const compared = controls.filter(({ path }) => !(isSchedule && path.startsWith("training.")));
  const changed = compared.filter((control) => JSON.stringify(value(spec, control)) !== JSON.stringify(value(other, control)));
  const schedule = plan(spec) === plan(other) ? [] : [phases(spec) ? `schedule of ${plural(phases(spec), "phase")}` : "one method"];
  return [...schedule, ...changed.map((control) => {
    const own = value(spec, control);
    const label = control.choices?.find((choice) => choice.value === own)?.label;
    return `${control.symbol} = ${label ?? (typeof own === "number" ? number(own) : typeof own === "string" ? own : own === null ? "none" : "own")}`;
  })];
}
