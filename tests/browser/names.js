// What a screen reader or the keyboard would miss.
() => {
  const name = (one) => one.getAttribute("aria-label") || one.closest("label")?.textContent || one.textContent.trim()
    || (one.getAttribute("aria-labelledby") && document.getElementById(one.getAttribute("aria-labelledby"))?.textContent);
  const wanted = "button, a, input, select, summary, [role=img], [role=button], [role=group], [role=region], section, nav, [tabindex='0']";
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  return {
    unnamed: [...document.querySelectorAll(wanted)].filter((one) => !name(one)).map((one) => one.outerHTML.slice(0, 120)),
    pictures: [...document.querySelectorAll("main svg")].filter((one) => !one.getAttribute("aria-label") && one.getAttribute("aria-hidden") !== "true").length,
    twice: ids.filter((id, at) => ids.indexOf(id) !== at),
    headings: [...document.querySelectorAll("h1, h2, h3")].map((one) => Number(one.tagName[1])),
    unlabelled: [...document.querySelectorAll("th:not([scope])")].length,
    language: document.documentElement.lang,
  };
}
