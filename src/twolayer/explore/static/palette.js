// Colours that colour-blind readers tell apart (Okabe and Ito), in an order that suits light and dark paper.

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#4D4D4D"];
const DARK = ["#56B4E9", "#E69F00", "#2BB58C", "#E39AC3", "#F0E442", "#E8702A", "#9AB6FF", "#C9CED2"];
const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];

export const isDark = () => document.documentElement.dataset.theme === "dark";
export const colour = (index) => (isDark() ? DARK : LIGHT)[index % LIGHT.length];
export const dash = (index) => DASHES[index % DASHES.length];
export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export function faded(hex, alpha) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  return `rgba(${red}, ${green}, ${blue}, ${alpha})`;
}

/** From orange through the colour of paper to blue, for numbers from -1 to 1. */
export function diverging(value) {
  const middle = isDark() ? [34, 39, 44] : [247, 248, 249];
  const end = value < 0 ? [213, 94, 0] : isDark() ? [86, 180, 233] : [0, 114, 178];
  const share = Math.min(1, Math.abs(value)) ** 0.8;
  return middle.map((from, at) => Math.round(from + (end[at] - from) * share));
}
