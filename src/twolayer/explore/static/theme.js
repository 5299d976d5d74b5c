// Sets the colours before the first paint: those that were chosen here, else those of the system.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("twolayer-theme"); } catch { /* storage is switched off: the system decides */ }
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = () => { document.documentElement.dataset.theme = chosen ?? (system.matches ? "dark" : "light"); };
  system.addEventListener("change", () => { apply(); dispatchEvent(new Event("theme")); });
  addEventListener("choose-theme", (event) => {
    chosen = event.detail;
    try { localStorage.setItem("twolayer-theme", chosen); } catch { /* it holds until the page is closed */ }
    apply();
    dispatchEvent(new Event("theme"));
  });
  apply();
})();
