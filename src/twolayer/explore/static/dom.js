// Small helpers: elements, formulas, numbers.

export const $ = (id) => document.getElementById(id);

/** An element with properties and children; names with a dash or in ATTRIBUTES are attributes. */
const ATTRIBUTES = /^(role|for|list|viewBox|d|[xyr]|c[xy]|x[12]|y[12]|points|fill|stroke|width|height|transform|inputmode|scope)$|-/;
function fill(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "class") node.setAttribute("class", value);
    else if (ATTRIBUTES.test(name)) node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}
export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);

/** A sentence in which names stand between backquotes, as text and code. */
export const spoken = (text) => String(text ?? "").split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));

// ----------------------------------------------------------------------------------------------------------- formulas

let loading = null;
function katex() {
  loading ??= new Promise((resolve, reject) => {
    const script = h("script", { src: new URL("vendor/katex.js", import.meta.url).href });
    script.addEventListener("load", () => resolve(window.katex));
    script.addEventListener("error", () => { loading = null; reject(new Error("KaTeX could not be loaded.")); });
    document.head.append(script);
  });
  return loading;
}

/** Typeset a formula in an element, which shows the text until KaTeX is there. */
export async function typeset(element, latex, { display = false, text = latex } = {}) {
  element.textContent = text;
  element.dataset.latex = latex;
  try {
    const library = await katex();
    if (element.dataset.latex === latex) library.render(latex, element, { displayMode: display, throwOnError: false, output: "htmlAndMathml", strict: false });
  } catch { /* the text stays */ }
  return element;
}
export function math(latex, options) {
  const element = h("span", { class: "symbol" });
  typeset(element, latex, options);
  return element;
}

// ------------------------------------------------------------------------------------------------------------ numbers

const RAISED = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };
export const raised = (number) => [...String(number)].map((letter) => RAISED[letter]).join("");

/** A number as it is read in a text: 0.0123, 45,600, 1.2 × 10⁻⁶. */
export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (typeof value !== "number") return String(value);
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) {
    const [mantissa, power] = value.toExponential(digits - 1).split("e");
    const rounded = String(Number(mantissa)).replace("-", "−");
    return (rounded === "1" ? "" : rounded === "−1" ? "−" : `${rounded} × `) + `10${raised(Number(power))}`;
  }
  return Number(value.toPrecision(size >= 1000 ? 5 : digits)).toLocaleString("en", { maximumFractionDigits: 6 }).replace("-", "−");
}

/** A number as one types it. */
export function typed(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number") return typeof value === "string" ? value : JSON.stringify(value);
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential().replace("e+", "e").replace(/\.?0+e/, "e") : String(value);
}

/** The number that a text states: 0.1, 1e9, 10^6, 2*10^5; the text itself where it states none, for the server to judge. */
export function parsed(text) {
  const plain = text.trim().replaceAll("−", "-").replace(/\s*[*×·]\s*10\s*(\^|\*\*)\s*/, "e").replace(/^10\s*(\^|\*\*)\s*/, "1e").replaceAll(/(\d)[ ,_](?=\d{3}\b)/g, "$1");
  return plain !== "" && Number.isFinite(Number(plain)) ? Number(plain) : text.trim();
}

export const plural = (count, word, words = `${word}s`) => `${number(count)} ${count === 1 ? word : words}`;

export function later(milliseconds, act) {
  let timer = 0;
  const call = (...args) => { clearTimeout(timer); timer = setTimeout(act, milliseconds, ...args); };
  call.cancel = () => clearTimeout(timer);
  return call;
}
