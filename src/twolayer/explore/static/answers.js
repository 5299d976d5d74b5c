// What the page asks after a change, in which order, and what it shows meanwhile.
//
// One lane draws: check of the specification by the theories themselves, then the simulation, then the verdict. The other
// fills the cards, one after the other, once the theories are there. A change ends what is under way.

import { Gone, Refused, work } from "./api.js";
import { Engines } from "./engines.js";
import { kindOf, read } from "./state.js";

const USUAL = ["DirectSGD", "SaadSolla"]; // what a specification without `run.descriptions` means
const CARDS_AFTER = 250;
const SIMULATE_AFTER = 500;

const isEnd = (error) => error.name === "AbortError";
const pause = (milliseconds, signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); reject(new DOMException("cancelled", "AbortError")); }, { once: true });
});

export class Answers {
  /** `show` = {curves, card, refused, failed, status, gone}; `kinds` = {SaadSolla: "theory", ...}; `isOpen(card)`, `options(card)`. */
  constructor({ show, kinds, isOpen, options }) {
    Object.assign(this, { show, kinds, isOpen, options, engines: new Engines(), tasks: new Map(), controller: new AbortController(), extra: new AbortController(), spec: null, done: new Set(), refusals: new Set() });
  }

  chosen(kind, spec = this.spec) {
    return (read(spec, "run.descriptions") ?? USUAL).filter((item) => (this.kinds[kindOf(item)] ?? "simulation") === kind);
  }

  /** The specification changed: end what is under way, and ask again. */
  async ask(spec, { simulate }) {
    this.controller.abort();
    const { signal } = (this.controller = new AbortController());
    this.spec = spec;
    this.done.clear();
    this.engines.look(spec);
    await this.during("ask", { kind: "ask", state: "queued" }, async () => {
      try {
        if (!(await this.theories(signal))) return;
        this.cards(signal);
        if (!simulate) return this.show.unjudged();
        await this.engines.atOnce(spec, this.chosen("simulation"), { signal, on: (data) => this.show.curves("simulation", data.curves, spec) });
        await pause(SIMULATE_AFTER, signal);
        await this.simulate(signal);
      } catch (error) {
        this.report(error);
      }
    });
  }

  /** The theories that are chosen; whether it is worth going on. A theory that does not apply does not stop the rest. */
  async theories(signal) {
    const names = this.chosen("theory");
    const answers = await Promise.allSettled(names.map((description) => this.do("theory", { description, slot: kindOf(description) }, signal, (data) => this.show.curves("theory", data.curves, this.spec))));
    if (signal.aborted) return false;
    this.refusals = new Set(names.map(kindOf).filter((_, at) => answers[at].status === "rejected"));
    const failures = answers.filter(({ status }) => status === "rejected").map(({ reason }) => reason);
    const worst = failures.find((error) => !(error instanceof Refused)) ?? failures[0];
    // Where no theory answers, what is drawn stays together, pale unless it is of this setting.
    const answered = names.map(kindOf).filter((name) => !this.refusals.has(name));
    this.show.settled("theory", answered.length ? answered : names.map(kindOf));
    if (!worst) this.show.fine();
    else this.report(worst);
    const isWrong = worst?.field && answers.every(({ status }) => status === "rejected") && /^(problem|training|run)/.test(worst.field);
    return !worst || (worst instanceof Refused && !isWrong);
  }

  /** Ask for the runs now; they appear while they are made, and the verdict follows. */
  async run() {
    this.extra.abort();
    this.extra = new AbortController();
    const stop = new AbortController();
    for (const { signal } of [this.controller, this.extra]) signal.addEventListener("abort", () => stop.abort(), { once: true });
    try {
      await this.simulate(stop.signal);
    } catch (error) {
      this.report(error);
    }
  }

  async simulate(signal) {
    const names = this.chosen("simulation");
    this.show.settled("simulation", names.map(kindOf));
    if (!names.length) return this.show.card("verdict", { verdict: null });
    const theories = this.chosen("theory").filter((item) => !this.refusals.has(kindOf(item)));
    const spec = this.spec;
    const show = (data) => this.show.curves("simulation", data.curves, spec);
    if (theories.length) {
      const judged = this.refusals.size ? { ...spec, run: { ...spec.run, descriptions: [...names, ...theories] } } : spec;
      this.show.card("verdict", await this.do("compare", {}, signal, show, judged));
      return;
    }
    for (const description of names) await this.do("simulate", { description, slot: kindOf(description) }, signal, show);
    const sentence = "No theory answers for this setting, so that runs have nothing to be compared with: see the message above.";
    this.show.card("verdict", { verdict: this.refusals.size ? { sentence } : null });
  }

  cards(signal) {
    return this.during("cards", { kind: "cards", state: "queued" }, async () => {
      try {
        await pause(CARDS_AFTER, signal);
        for (const kind of ["explain", "learn", "escape", "equations"]) await this.card(kind, signal);
      } catch (error) {
        this.report(error);
      }
    });
  }

  /** Fill one card, unless it is folded; a refusal is the answer of the card. */
  async card(kind, signal = this.controller.signal) {
    if (this.done.has(kind) || !this.isOpen(kind)) return;
    this.done.add(kind);
    try {
      this.show.card(kind, await this.do(kind, this.options(kind), signal));
    } catch (error) {
      if (!(error instanceof Refused)) {
        this.done.delete(kind);
        throw error;
      }
      this.show.refusedCard(kind, error.message);
    }
  }

  check = async (text, isMine) => {
    try {
      return await work("check", this.spec ?? {}, { formula: text, slot: isMine ? "typed" : "shown" });
    } catch (error) {
      if (isEnd(error)) return null;
      if (error instanceof Refused) return { ok: false, message: error.message, position: error.position };
      this.report(error);
      return null;
    }
  };

  /** The first theory of a pinned setting, from the starts of all its runs. */
  pinned(spec, slot) {
    const [description] = this.chosen("theory", spec);
    if (!description) return Promise.resolve([]);
    const replicas = read(spec, "run.replicas") ?? 16;
    return this.during(slot, { kind: "theory", of: kindOf(description), state: "queued" }, async () => (await work("theory", spec, { description, slot, replicas })).curves);
  }

  async do(kind, options, signal, onCurves, spec = this.spec) {
    const of = kindOf(options.description);
    const put = { theory: this.engines.theory, simulate: this.engines.runs }[kind] ?? ((...asked) => work(kind, ...asked));
    return this.during(`${kind} ${options.slot ?? ""}`, { kind, of, state: "queued" }, (tell) => put(spec, options, { signal, on: (name, data) => {
      if (signal.aborted) return;
      if (name === "partial" || name === "result") onCurves?.(data);
      else tell({ state: name, ...data });
    } }));
  }

  /** Keep a task in the list of what is under way while `act` runs; a newer task of the same name takes its place. */
  async during(name, task, act) {
    const mine = {};
    const tell = (change) => {
      if (mine.isOver || (this.tasks.has(name) && this.tasks.get(name).mine !== mine && mine.isKnown)) return;
      mine.isKnown = true;
      this.tasks.set(name, { ...this.tasks.get(name), ...task, ...change, mine });
      this.show.status([...this.tasks.values()]);
    };
    tell({});
    try {
      return await act(tell);
    } finally {
      mine.isOver = true;
      if (this.tasks.get(name)?.mine === mine) this.tasks.delete(name);
      this.show.status([...this.tasks.values()]);
    }
  }

  report(error) {
    if (isEnd(error)) return;
    if (error instanceof Gone) this.show.gone(error.message);
    else if (error instanceof Refused) this.show.refused(error);
    else {
      this.show.failed(`The page failed: ${error.message}`);
      console.error(error);
    }
  }

  stop() {
    this.extra.abort();
    this.controller.abort();
    this.controller = new AbortController();
    this.tasks.clear();
    this.show.status([]);
  }
}
