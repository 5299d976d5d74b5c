// What is wrong with a page for those who do not see it as others do: names, references, contrast. No network is needed.
() => {
  const problems = [];
  const told = (element) => element.outerHTML.replace(/\s+/g, " ").slice(0, 100);
  const isSeen = (element) => element.checkVisibility({ opacityProperty: true, visibilityProperty: true }) && element.getClientRects().length > 0;

  // References and identifiers.
  const ids = [...document.querySelectorAll("[id]")].map(({ id }) => id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) problems.push(`the identifier ${id} is given twice`);
  for (const name of ["aria-labelledby", "aria-describedby", "aria-controls", "for"]) {
    for (const element of document.querySelectorAll(`[${name}]`)) {
      for (const id of element.getAttribute(name).split(/\s+/)) if (!document.getElementById(id)) problems.push(`${name}="${id}" names nothing: ${told(element)}`);
    }
  }
  if (!document.documentElement.lang) problems.push("the page has no language");
  if (document.querySelectorAll("main").length !== 1) problems.push("the page must have one main part");
  const levels = [...document.querySelectorAll("h1, h2, h3, h4")].filter(isSeen).map(({ tagName }) => Number(tagName[1]));
  levels.forEach((level, at) => { if (level > (levels[at - 1] ?? 0) + 1) problems.push(`a heading of level ${level} follows one of ${levels[at - 1]}`); });
  for (const image of document.querySelectorAll("img:not([alt])")) problems.push(`no alternative text: ${told(image)}`);
  for (const element of document.querySelectorAll("[tabindex]")) if (element.tabIndex > 0) problems.push(`another order of the tab key: ${told(element)}`);
  for (const hidden of document.querySelectorAll("[aria-hidden=true]")) {
    if ([...hidden.querySelectorAll("a[href], button, input, select, textarea, [tabindex='0']")].some(isSeen)) problems.push(`hidden, but reached by the tab key: ${told(hidden)}`);
  }

  // Contrast of text against the colours behind it; disabled controls are exempt.
  const pen = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const known = new Map();
  const rgba = (colour) => {
    if (!known.has(colour)) {
      pen.clearRect(0, 0, 1, 1);
      pen.fillStyle = colour;
      pen.fillRect(0, 0, 1, 1);
      const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
      known.set(colour, [r, g, b, a / 255]);
    }
    return known.get(colour);
  };
  const over = (top, below) => [0, 1, 2].map((n) => top[n] * top[3] + below[n] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let one = element; one; one = one.parentElement) {
      const style = getComputedStyle(one);
      if (style.backgroundImage !== "none") return null; // a picture, whose colours nobody knows here
      layers.unshift(rgba(style.backgroundColor));
    }
    return layers.reduce((below, layer) => over(layer, below), rgba("Canvas").slice(0, 3));
  };
  const light = (colour) => colour.map((value) => value / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !isSeen(element) || element.closest("option, script, style, .katex-mathml, :disabled, [aria-disabled=true], canvas")) continue;
    const style = getComputedStyle(element);
    const ground = behind(element);
    if (!ground) continue;
    let opacity = 1;
    for (let one = element; one; one = one.parentElement) opacity *= Number(getComputedStyle(one).opacity);
    const ink = rgba(style.color);
    const [a, b] = [over([...ink.slice(0, 3), ink[3] * opacity], ground), ground].map(light).sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (a + 0.05) / (b + 0.05);
    texts += 1;
    if (ratio < (isLarge ? 3 : 4.5)) problems.push(`contrast ${ratio.toFixed(2)} of "${walker.currentNode.data.trim().slice(0, 40)}": ${told(element)}`);
  }
  return { problems, texts };
}
