// The page: the state in the middle, controls and answers around it.

import { Answers } from "./answers.js";
import { download, form as fetchForm, Gone, Refused } from "./api.js";
import * as cards from "./cards.js";
import { Controls } from "./controls.js";
import { $, h, later, parsed, spoken, typed } from "./dom.js";
import { Figures, UNITS } from "./figures.js";
import { isDark } from "./palette.js";
import { clone, fromAddress, PINS, read, toAddress, VIEW } from "./state.js";
import { differences, headline, sentence, status } from "./words.js";

const RETRY = 1500;
const HEARTBEAT = 4000;
const PLAY_SECONDS = 8;
const CARDS = ["verdict", "learn", "explain", "escape", "equations"];
const UNJUDGED = "This setting has no verdict: see the message above.";

class Page {
  constructor(form) {
    this.form = form;
    this.titles = Object.fromEntries(form.descriptions.map(({ id, title }) => [id, title]));
    const kinds = Object.fromEntries(form.descriptions.map(({ id, kind }) => [id, kind]));
    this.curves = new Map();
    this.pinned = [];
    this.answered = new Set(); // cards whose content is of this setting
    this.isGone = false;
    this.figures = new Figures({ titles: this.titles, onView: (change) => this.look(change) });
    this.answers = new Answers({ kinds, isOpen: (card) => !$(card).matches("details") || $(card).open, options: (card) => (card === "escape" ? { threshold: this.state.view.threshold } : {}), show: this.shows() });
    this.writeAddress = later(60, () => this.writeAddressNow());
    this.open(this.stateAtFirst());
    this.controls = new Controls($("form"), form, { spec: this.state.spec, onChange: (path) => this.edited(path), check: (text, isMine) => this.check(text, isMine) });
    this.wire();
    this.begin();
  }

  stateAtFirst() {
    try {
      const stated = fromAddress();
      if (stated) return stated;
    } catch {
      this.message("The address does not hold a state of this page, which therefore shows its first example.", true);
    }
    return { spec: clone(this.form.initial_spec), view: clone(VIEW) };
  }

  open(state) {
    this.state = state;
    this.curves.clear();
    this.pinned = state.view.pins.map(() => null);
    for (const card of ["escape", "equations"]) $(card).open = state.view.open.includes(card);
    $("threshold").value = typed(state.view.threshold);
  }

  /** Show everything of a state anew, and ask for its answers. */
  begin() {
    this.controls.set(this.state.spec);
    this.showSwitches();
    this.showPreset();
    this.recallPins();
    this.changed();
  }

  // ------------------------------------------------------------------------------------------------------------- changes

  /** A control changed a field. Another end of the run is another axis, on which a part of the old one means nothing. */
  edited(path) {
    if (path === "run.until") this.state.view.zoom = null;
    this.changed();
  }

  /** The specification changed. */
  changed() {
    const { spec, view } = this.state;
    $("title").textContent = this.title();
    document.title = `${$("title").textContent} · twolayer explorer`;
    $("lead").textContent = sentence(spec);
    this.showPreset();
    this.showPins();
    this.writeAddress();
    this.answered.clear();
    clearTimeout(this.fading);
    this.fading = setTimeout(() => this.fade(true), 250);
    this.answers.ask(clone(spec), { simulate: view.auto });
  }

  /** The title of the preset, while the problem is still that one; else one that says what is learned. */
  title() {
    const { spec } = this.state;
    const kind = (own) => JSON.stringify([read(own, "problem.target"), read(own, "problem.student.activation"), read(own, "problem.student.p")]);
    const presets = [{ title: this.form.initial_spec.title, spec: this.form.initial_spec }, ...this.form.presets];
    const preset = presets.find((item) => item.spec.title === spec.title && kind(item.spec) === kind(spec));
    if (!preset) spec.title = headline(spec);
    return preset?.title || spec.title;
  }

  /** The view changed: draw again, ask nothing. */
  look(change) {
    Object.assign(this.state.view, change);
    if ("x" in change || "xScale" in change) this.state.view.zoom = null;
    this.draw();
    this.writeAddress();
  }

  draw() {
    const { view } = this.state;
    this.figures.draw([...this.curves.values()].map(({ curve }) => curve), view.pins.map(({ name }, at) => ({ name, curves: this.pinned[at] })), view);
    this.showZoom();
  }

  /** The part of the axis that is shown, in two fields; empty ones have its ends as placeholders. */
  showZoom() {
    const { zoom } = this.state.view;
    $("unzoom").hidden = zoom === null;
    const short = (value) => (value === undefined ? "" : typed(Number(value.toPrecision(4))));
    for (const [at, name] of ["zoom-from", "zoom-to"].entries()) {
      const field = $(name);
      field.placeholder = short(this.figures.risk.whole[at]);
      if (field === document.activeElement) continue;
      field.value = zoom === null ? "" : short(zoom[at]);
      field.setAttribute("aria-invalid", "false");
    }
  }

  /** Another part of the axis, from the fields; one that is left empty is an end of the axis. */
  chooseZoom() {
    const fields = ["zoom-from", "zoom-to"].map($);
    const numbers = fields.map(({ value }, at) => (value.trim() === "" ? this.figures.risk.whole[at] : parsed(value)));
    const isEmpty = fields.every(({ value }) => value.trim() === "");
    const isRight = numbers.every((value) => typeof value === "number") && numbers[0] < numbers[1];
    for (const field of fields) field.setAttribute("aria-invalid", String(!isEmpty && !isRight));
    if (isEmpty || isRight) this.look({ zoom: isEmpty ? null : numbers });
  }

  /** Answers to an earlier question become pale until they are replaced. */
  fade(isStale) {
    for (const id of ["risk-plot", "overlap-plot", "plane"]) $(id).classList.toggle("stale", isStale && this.curves.size > 0);
    if (isStale) for (const id of CARDS) $(id).classList.toggle("stale", !this.answered.has(id));
  }

  fadeUnlessNew() {
    clearTimeout(this.fading);
    if (![...this.curves.values()].some(({ spec }) => spec === this.answers.spec)) this.fade(true);
  }

  /** A card has the answer of this setting. */
  fresh(name) {
    this.answered.add(name);
    $(name).classList.remove("stale");
  }

  /** A computation did not end: a verdict that stands there is that of another setting. */
  unjudged(words) {
    if (this.answered.has("verdict")) return;
    this.fresh("verdict");
    cards.waiting("verdict", words);
  }

  writeAddressNow() {
    const href = toAddress(this.state);
    $("share-link").href = href;
    history.replaceState(null, "", href);
  }

  /** Check a formula; a mistake in one that the user typed is said above the plot as well. */
  async check(text, isMine) {
    const answer = await this.answers.check(text, isMine);
    if (answer && isMine) this.message(answer.ok ? "" : `${answer.message}${whereIs(answer)}`);
    return answer && { ...answer, where: whereIs(answer) };
  }

  // ------------------------------------------------------------------------------------------------- what answers bring

  shows() {
    return {
      curves: (kind, curves, spec) => this.receive(kind, curves ?? [], spec),
      settled: (kind, names) => this.settle(kind, names),
      card: (name, data) => this.card(name, data),
      refusedCard: (name, message) => { this.fresh(name); cards.refused(name, message); },
      unjudged: () => this.unjudged("Simulate to compare the theory with runs."),
      status: (tasks) => this.showStatus(tasks),
      fine: () => { this.message(""); this.controls.refuse(null); },
      refused: (error) => { this.message(error.message); this.controls.refuse(error); this.unjudged(UNJUDGED); this.fadeUnlessNew(); },
      failed: (message) => { this.message(message); this.unjudged(UNJUDGED); this.fadeUnlessNew(); },
      gone: (message) => this.gone(message),
    };
  }

  receive(kind, curves, spec) {
    for (const [name, item] of this.curves) if (item.spec !== spec) this.curves.delete(name);
    for (const curve of curves) this.curves.set(curve.name, { curve, spec });
    clearTimeout(this.fading);
    this.fade(false);
    this.later ??= requestAnimationFrame(() => { this.later = null; this.draw(); });
  }

  /** Curves of descriptions that are no longer asked for leave the plot. */
  settle(kind, names) {
    for (const [name, { curve }] of this.curves) if (curve.kind === kind && !names.some((own) => name === own || name.startsWith(own))) this.curves.delete(name);
    this.draw();
  }

  card(name, data) {
    this.fresh(name);
    if (name === "verdict") return cards.verdict(data);
    if (name === "explain") {
      this.controls.explain(data.descriptions);
      return cards.explain(data, this.titles);
    }
    return cards[name](data);
  }

  showStatus(tasks) {
    const now = status(tasks, this.titles);
    document.body.dataset.status = now.status;
    if (this.isGone) return;
    clearTimeout(this.telling);
    const tell = () => {
      $("state-text").textContent = now.words;
      $("stop").hidden = now.status === "idle";
    };
    // Short work would make the words flicker.
    if (now.status === "idle" || now.status === "compiling") tell();
    else this.telling = setTimeout(tell, 300);
    $("simulate").textContent = tasks.some(({ kind }) => kind === "simulate") ? "Simulating" : "Simulate";
  }

  message(words, isNote = false) {
    const place = $("message");
    if (place.textContent !== words.replaceAll("`", "")) place.replaceChildren(...spoken(words));
    place.hidden = !words;
    place.classList.toggle("note", isNote);
  }

  // ----------------------------------------------------------------------------------------------------------- the server

  gone(message) {
    if (this.isGone) return;
    this.isGone = true;
    document.body.dataset.gone = "";
    this.message(message);
    $("state-text").textContent = "No connection";
    $("stop").hidden = true;
    setTimeout(() => this.tryAgain(), RETRY);
  }

  async tryAgain() {
    try {
      await fetchForm();
    } catch (error) {
      if (error instanceof Refused) this.message("The server was started again and has another address now: open the one that it printed.");
      setTimeout(() => this.tryAgain(), RETRY);
      return;
    }
    this.isGone = false;
    delete document.body.dataset.gone;
    this.message("");
    this.recallPins();
    this.changed();
  }

  async heartbeat() {
    if (!document.hidden && !this.isGone) {
      await fetch("static/icon.svg", { method: "HEAD", cache: "no-store" }).catch(() => this.gone(new Gone("The server does not answer. Is `twolayer explore` still running? The page tries again by itself.").message));
    }
    setTimeout(() => this.heartbeat(), HEARTBEAT);
  }

  // -------------------------------------------------------------------------------------------------------- what one sees

  showSwitches() {
    const { view } = this.state;
    const choose = (name, key, pairs) => segmented($(name), pairs, view[key], (value) => this.look({ [key]: value }));
    choose("x-unit", "x", Object.entries(UNITS).map(([value, [words]]) => [value, words]));
    choose("x-scale", "xScale", [["linear", "linear"], ["log", "log"]]);
    choose("y-scale", "yScale", [["log", "log"], ["linear", "linear"]]);
    choose("overlap-kind", "overlaps", [["M", "M"], ["Q", "Q"]]);
    $("auto").checked = view.auto;
    for (const choice of document.querySelectorAll("[name=figure]")) choice.checked = choice.value === view.figure;
  }

  showPreset() {
    const select = $("preset");
    if (!select.options.length) {
      const group = (name, label) => h("optgroup", { label }, this.form.presets.filter((item) => item.group === name).map(({ id, title }) => h("option", { value: id }, title)));
      select.append(h("option", { value: "" }, "Your own setting"), h("option", { value: "first" }, this.form.initial_spec.title || "The first example"), group("gallery", "Figures of papers"), group("targets", "Targets that teach"));
    }
    const text = JSON.stringify(this.state.spec);
    const all = [{ id: "first", spec: this.form.initial_spec, note: "" }, ...this.form.presets];
    const same = all.find(({ spec }) => JSON.stringify(spec) === text);
    select.value = same?.id ?? "";
    $("preset-note").textContent = same?.note ?? "";
    $("preset-note").hidden = !same?.note;
  }

  choosePreset(id) {
    const spec = id === "first" ? this.form.initial_spec : this.form.presets.find((item) => item.id === id)?.spec;
    if (!spec) return;
    this.state.spec = clone(spec);
    this.state.view.zoom = null;
    this.controls.set(this.state.spec);
    for (const name of ["verdict", "learn", "explain"]) cards.waiting(name, "Waiting for the answer.");
    this.changed();
  }

  // --------------------------------------------------------------------------------------------------------------- pins

  pin() {
    const { view, spec } = this.state;
    const name = ["A", "B", "C"].find((letter) => !view.pins.some((item) => item.name === letter));
    if (!name) return;
    const curves = [...this.curves.values()].map(({ curve }) => curve).filter(({ kind }) => kind === "theory").slice(0, 1);
    view.pins.push({ name, spec: clone(spec) });
    this.pinned.push(curves);
    this.recallPin(view.pins.length - 1);
    this.showPins();
    this.look({});
  }

  unpin(at) {
    this.state.view.pins.splice(at, 1);
    this.pinned.splice(at, 1);
    this.showPins();
    this.look({});
    $("pin").focus();
  }

  /** The curves of pinned settings that came with a link. */
  recallPins() {
    for (const at of this.state.view.pins.keys()) this.recallPin(at);
  }

  async recallPin(at) {
    const { name, spec } = this.state.view.pins[at];
    const curves = await this.answers.pinned(spec, `pin-${name}`).catch(() => null);
    const now = this.state.view.pins.findIndex((item) => item.name === name);
    if (curves === null || now < 0) return;
    this.pinned[now] = curves;
    this.draw();
  }

  showPins() {
    const { pins } = this.state.view;
    const rows = pins.map(({ name, spec }, at) => {
      const differs = differences(spec, this.state.spec, this.form).slice(0, 4).join(", ");
      return h("li", {}, h("b", {}, name), h("span", {}, differs || "the same as now"),
        h("button", { type: "button", "aria-label": `Use setting ${name} again`, onclick: () => this.recall(spec) }, "Use"),
        h("button", { type: "button", "aria-label": `Remove setting ${name}`, onclick: () => this.unpin(at) }, "Remove"));
    });
    $("pins").replaceChildren(...rows);
    $("pins").hidden = !rows.length;
    $("pin").disabled = pins.length >= PINS;
  }

  recall(spec) {
    if (read(spec, "run.until") !== read(this.state.spec, "run.until")) this.state.view.zoom = null;
    this.state.spec = clone(spec);
    this.controls.set(this.state.spec);
    this.changed();
  }

  // ------------------------------------------------------------------------------------------------------------- wiring

  wire() {
    $("preset").addEventListener("change", (event) => this.choosePreset(event.target.value));
    $("form").addEventListener("submit", (event) => event.preventDefault());
    $("reset").addEventListener("click", () => this.choosePreset("first"));
    $("overlap-of").addEventListener("change", (event) => this.look({ of: event.target.value }));
    $("plane-of").addEventListener("change", (event) => this.look({ plane: event.target.value }));
    $("unzoom").addEventListener("click", () => { this.look({ zoom: null }); $("risk-plot").scrollIntoView({ block: "nearest" }); });
    for (const name of ["zoom-from", "zoom-to"]) $(name).addEventListener("change", () => this.chooseZoom());
    for (const choice of document.querySelectorAll("[name=figure]")) choice.addEventListener("change", () => this.look({ figure: choice.value }));
    $("auto").addEventListener("change", (event) => this.look({ auto: event.target.checked }));
    $("simulate").addEventListener("click", () => this.answers.run());
    $("stop").addEventListener("click", () => { this.answers.stop(); this.fade(false); });
    $("pin").addEventListener("click", () => this.pin());
    $("threshold").addEventListener("change", (event) => this.chooseThreshold(parsed(event.target.value)));
    for (const card of ["escape", "equations"]) $(card).addEventListener("toggle", () => this.toggled(card));
    $("share-link").addEventListener("click", (event) => this.share(event));
    $("share-sheet").addEventListener("focusout", () => { $("share-sheet").hidden = true; });
    for (const button of document.querySelectorAll("[data-format]")) button.addEventListener("click", () => this.take(button));
    addEventListener("hashchange", () => { this.open(this.stateAtFirst()); this.begin(); });
    addEventListener("theme", () => { this.showTheme(); this.figures.again(); });
    $("to-downloads").addEventListener("click", () => { $("downloads").scrollIntoView({ block: "nearest" }); $("downloads").querySelector("input:checked").focus({ preventScroll: true }); });
    $("theme").addEventListener("click", () => dispatchEvent(new CustomEvent("choose-theme", { detail: isDark() ? "light" : "dark" })));
    document.fonts.ready.then(() => this.figures.again());
    this.showTheme();
    this.wireTime();
    setTimeout(() => this.heartbeat(), HEARTBEAT);
  }

  showTheme() {
    $("theme").setAttribute("aria-pressed", String(isDark()));
  }

  toggled(card) {
    const open = ["escape", "equations"].filter((name) => $(name).open);
    if (JSON.stringify(open) !== JSON.stringify(this.state.view.open)) this.look({ open });
    if ($(card).open && !this.answers.done.has(card)) this.askCard(card);
  }

  askCard(card) {
    cards.waiting(card, "Computing.");
    this.answers.card(card).catch((error) => this.answers.report(error));
  }

  /** The threshold of the escape is part of the view: it changes nothing but its card. */
  chooseThreshold(value) {
    this.look({ threshold: value });
    this.answers.done.delete("escape");
    this.askCard("escape");
  }

  async share(event) {
    event.preventDefault();
    this.writeAddressNow();
    const link = $("share-link");
    // Browsers give pages a clipboard on this machine and over https only.
    const isCopied = await (navigator.clipboard?.writeText(link.href) ?? Promise.reject()).then(() => true, () => false);
    link.textContent = isCopied ? "Copied" : "Copy link";
    setTimeout(() => { link.textContent = "Copy link"; }, 1800);
    $("share-sheet").hidden = isCopied;
    if (isCopied) return;
    $("share-field").value = link.href;
    $("share-field").select();
  }

  /** What the figure of the page shows, for the one that the package makes. */
  shown() {
    const { figure, x, xScale, yScale, zoom, pins } = this.state.view;
    return { figure, unit: UNITS[x][0], x: xScale, y: yScale, limits: zoom, pins: pins.map(({ name, spec }) => ({ name, spec })) };
  }

  async take(button) {
    const format = button.dataset.format === "figure" ? document.querySelector("[name=figure-format]:checked").value : button.dataset.format;
    button.disabled = true;
    try {
      $("state-text").textContent = "Making the file";
      const name = await download(format, this.state.spec, this.shown());
      $("state-text").textContent = `Saved ${name}`;
    } catch (error) {
      this.answers.report(error);
    } finally {
      button.disabled = false;
    }
  }

  // ---------------------------------------------------------------------------------------------------------------- time

  wireTime() {
    const slider = $("time");
    const go = (at) => {
      this.state.view.at = at;
      this.figures.view = this.state.view;
      this.figures.mark();
      this.writeAddress();
    };
    slider.addEventListener("input", () => { this.play(false); go(slider.value / 1000); });
    $("play").addEventListener("click", () => this.play(!this.isPlaying));
    const step = (now) => {
      if (!this.isPlaying) return;
      const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      const passed = (now - (this.lastFrame ?? now)) / 1000;
      if (!isCalm || passed > 0.5 || this.lastFrame === null) {
        this.lastFrame = now;
        const at = Math.min(1, this.state.view.at + passed / PLAY_SECONDS);
        go(at);
        if (at >= 1) this.play(false);
      }
      requestAnimationFrame(step);
    };
    this.play = (isOn) => {
      if (isOn && this.state.view.at >= 1) go(0);
      const isNew = isOn && !this.isPlaying;
      this.isPlaying = isOn;
      this.lastFrame = null;
      $("play").setAttribute("aria-label", isOn ? "Pause" : "Play");
      $("play-shape").setAttribute("d", isOn ? "M5 4h4v12H5zM11 4h4v12h-4z" : "M6 4l10 6-10 6z");
      if (isNew) requestAnimationFrame(step);
    };
  }
}

/** Where in a formula a mistake is, for those who count. */
const whereIs = ({ position }) => (position === null || position === undefined ? "" : ` It is at character ${position + 1}.`);

/** A row of radio buttons that looks like one switch. */
function segmented(fieldset, pairs, chosen, onChoose) {
  const legend = fieldset.querySelector("legend");
  const rows = pairs.map(([value, words]) => h("label", {}, h("input", { type: "radio", name: fieldset.id, value, checked: value === chosen, onchange: () => onChoose(value) }), h("span", {}, words)));
  fieldset.replaceChildren(legend, ...rows);
}

async function start() {
  for (;;) {
    try {
      return new Page(await fetchForm());
    } catch (error) {
      $("message").textContent = error instanceof Gone || error instanceof Refused ? error.message : `The page failed: ${error.message}`;
      $("message").hidden = false;
      $("state-text").textContent = "No connection";
      if (!(error instanceof Gone || error instanceof Refused)) throw error;
      await new Promise((resolve) => setTimeout(resolve, RETRY));
    }
  }
}

await start();
