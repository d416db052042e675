// Keys: Esc stops, always and at once; digits change the view; A acknowledges.

/**
 * @param {{stop: () => void, view: (number: number) => void, acknowledge: () => void, help: () => void}} does
 * @returns {() => void} takes the keys away again
 */
export function bindKeys(does) {
  /** @param {KeyboardEvent} event */
  function pressed(event) {
    if (event.key === "Escape") {
      event.preventDefault();
      if (!event.repeat) does.stop();
      return;
    }
    const typing =
      event.target instanceof HTMLElement &&
      event.target.matches("input:not([type=checkbox], [type=range]), textarea, select");
    if (typing || event.ctrlKey || event.altKey || event.metaKey || event.repeat) return;
    if (/^[1-8]$/.test(event.key)) does.view(Number(event.key));
    else if (event.key === "a" || event.key === "A") does.acknowledge();
    else if (event.key === "?") does.help();
  }
  document.addEventListener("keydown", pressed, true);
  return () => document.removeEventListener("keydown", pressed, true);
}
