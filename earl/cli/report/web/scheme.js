// Light or dark: as the system prefers, or as the reader chose; the choice is this browser's.

const KEY = "earl-scheme";
const NEXT = { system: "light", light: "dark", dark: "system" };
const SAID = { system: "as the system", light: "light", dark: "dark" };

function kept() {
  try {
    return localStorage.getItem(KEY) ?? "system";
  } catch {
    return "system";
  }
}

export function scheme(button) {
  let chosen = kept() in NEXT ? kept() : "system";
  const set = () => {
    if (chosen === "system") document.documentElement.removeAttribute("data-scheme");
    else document.documentElement.setAttribute("data-scheme", chosen);
    button.setAttribute("aria-label", `Colour scheme: ${SAID[chosen]}`);
    button.title = button.getAttribute("aria-label");
  };
  button.addEventListener("click", () => {
    chosen = NEXT[chosen];
    try {
      localStorage.setItem(KEY, chosen);
    } catch {
      // Without storage the choice holds until the page is left.
    }
    set();
  });
  set();
  // Paper is light. A chart is drawn again when the scheme changes.
  addEventListener("beforeprint", () => document.documentElement.setAttribute("data-scheme", "light"));
  addEventListener("afterprint", set);
}
