// The state of the page: a specification and a view of it. All of it lives in the link.

export const VIEW = { x: "time", xScale: "linear", yScale: "log", overlaps: "M", of: "", plane: "mq", at: 1, auto: true, pins: [], open: [], zoom: null, threshold: 0.1, figure: "risk" };
export const PINS = 3;

export const clone = (value) => (value === undefined ? undefined : JSON.parse(JSON.stringify(value)));

export function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const text = Array.from(bytes, (byte) => String.fromCharCode(byte)).join("");
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
}

export function decode(text) {
  const binary = atob(text.replaceAll("-", "+").replaceAll("_", "/"));
  const state = JSON.parse(new TextDecoder().decode(Uint8Array.from(binary, (letter) => letter.charCodeAt(0))));
  if (state?.v !== 1 || typeof state.spec !== "object" || state.spec === null) throw new Error("another kind of state");
  return state;
}

/** The state in the address; null where there is none, an error where it cannot be read. */
export function fromAddress() {
  const text = location.hash.slice(1);
  if (!text) return null;
  const { spec, view } = decode(text);
  const known = Object.fromEntries(Object.entries(view ?? {}).filter(([name]) => name in VIEW));
  known.pins = Array.isArray(known.pins) ? known.pins.slice(0, PINS) : [];
  known.open = Array.isArray(known.open) ? known.open : [];
  const isRange = Array.isArray(known.zoom) && known.zoom.length === 2 && known.zoom.every(Number.isFinite);
  if (!isRange) known.zoom = null;
  return { spec, view: { ...VIEW, ...known } };
}

/** What differs from the usual view is all that a link needs to say. */
export function toAddress({ spec, view }) {
  const differs = Object.entries(view).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(VIEW[name]));
  const url = new URL(location.href);
  url.hash = encode({ v: 1, spec, view: Object.fromEntries(differs) });
  return url.href;
}

const keys = (path) => path.split(".");

export function read(spec, path) {
  return keys(path).reduce((value, key) => (value !== null && typeof value === "object" ? value[key] : undefined), spec);
}

/** Write a value at a path; null and undefined remove the key. An object stated by its name alone becomes a table. */
export function write(spec, path, value) {
  const names = keys(path);
  const last = names.pop();
  let table = spec;
  for (const name of names) {
    if (typeof table[name] === "string") table[name] = { kind: table[name] };
    if (table[name] === null || typeof table[name] !== "object") table[name] = {};
    table = table[name];
  }
  if (value === null || value === undefined) delete table[last];
  else table[last] = clone(value);
}

/** How many phases a schedule has; 0 where training is one method. */
export const phases = (spec) => {
  const stated = read(spec, "training.phases");
  return Array.isArray(stated) ? stated.length : 0;
};

/** The name of an object in a specification, which may be stated by its name alone. */
export const kindOf = (value) => (value !== null && typeof value === "object" && !Array.isArray(value) ? value.kind : value);

/** The choice of a control that a value is; one whose table is a number stands for all numbers. */
export const choiceOf = ({ choices }, stated) => choices.find(({ value }) => value === kindOf(stated)) ?? choices.find(({ table }) => typeof table === "number" && typeof stated === "number");
