// Trajectories: chosen by step, reward and ending; read turn by turn, or token by token.

import { at, empty, h, put } from "./dom.js";
import { count, number, plural, signed } from "./text.js";
import { tipped } from "./tip.js";

const ROLES = ["system", "user", "tool", "assistant"];
// Log-probs from here down are drawn in the darkest shade.
const FLOOR = -4;
const SHADES = 6;

export class Viewer {
  /** ask: answers requests about the run. */
  constructor(ask) {
    this.ask = ask;
    this.known = "";
    this.shown = null;
    this.colour = "logprob";
    this.list = h("div", { class: "list", role: "listbox", "aria-label": "Trajectories", tabindex: -1 });
    this.detail = h("article", { class: "detail", "aria-live": "polite", tabindex: -1 });
    this.fields = {
      kind: select("shown", [["", "all"], ["training", "training"], ["evaluation", "evaluations"]]),
      reward: select("reward", [["", "any"], ["positive", "above 0"], ["zero", "0"], ["negative", "below 0"]]),
      ending: select("ending", [["", "any"]]),
      first: h("input", { type: "number", min: 0, placeholder: "first", "aria-label": "first step" }),
      last: h("input", { type: "number", min: 0, placeholder: "last", "aria-label": "last step" }),
      text: h("input", { type: "search", maxlength: 64, placeholder: "part of what was said", "aria-label": "text" }),
    };
    for (const field of Object.values(this.fields)) field.addEventListener("change", () => this.load());
    this.leftOut = h("p", { class: "note" });
    this.found = h("span", { class: "faint", role: "status" });
    const { kind, reward, ending, first, last, text } = this.fields;
    put(at("viewer"), h("p", { class: "note" }, "Of each batch the first groups, of each evaluation a few: chosen by their position, not by their outcome."), this.leftOut,
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() },
        labelled("shown", kind), labelled("reward", reward), labelled("ending", ending),
        h("label", {}, h("span", {}, "steps"), first), h("label", {}, h("span", {}, "to"), last), labelled("text", text), this.found),
      h("div", { class: "split" }, this.list, this.detail));
    this.rows([]);
    put(this.detail, empty("Choose a trajectory to read it."));
    addEventListener("hashchange", () => this.named() && this.show(this.named(), true));
  }

  /** The ticket that the address names, as "#trajectory-7" does; 0 if it names none. */
  named() {
    return Number(location.hash.match(/^#trajectory-(\d+)$/)?.[1] ?? 0);
  }

  update(section) {
    const known = JSON.stringify(section);
    if (known === this.known) return;
    this.known = known;
    at("viewer").classList.toggle("without", !section.count);
    this.leftOut.textContent = section.left_out ?? "";
    options(this.fields.kind, [["", "all"], ["training", "training"], ["evaluation", "evaluations"], ...section.evaluations.map((name) => [name, name])]);
    options(this.fields.ending, [["", "any"], ...section.endings.map((name) => [name, name.replaceAll("_", " ")])]);
    this.load();
  }

  async load() {
    const asked = new URLSearchParams(Object.entries(this.fields).map(([name, field]) => [name, field.value]).filter(([, value]) => value));
    const answer = await this.ask(`trajectories?${asked}`);
    if (!answer) return;
    const { count: many, rows } = answer;
    this.found.textContent = `${plural(many, "trajectory").replace("trajectorys", "trajectories")}${many > rows.length ? `, the newest ${rows.length} listed` : ""}`;
    this.rows(rows);
    if (!this.shown && this.named()) {
      await this.show(this.named(), false);
      this.list.closest("section").scrollIntoView();
    } else if (!this.shown && rows.length) {
      this.show(rows[0].ticket, false);
    }
  }

  rows(rows) {
    if (!rows.length) {
      put(this.list, empty("None of this kind was kept."));
      return;
    }
    const focused = this.list.contains(document.activeElement);
    const current = rows.some((one) => one.ticket === this.shown) ? this.shown : rows[0].ticket;
    put(this.list, rows.map((one) => h("button", {
      type: "button", role: "option", "data-ticket": one.ticket, tabindex: one.ticket === current ? 0 : -1,
      "aria-selected": one.ticket === this.shown, onclick: () => this.show(one.ticket, true), onkeydown: (event) => this.move(event),
    }, h("b", { class: sign(one.reward) }, typeof one.reward === "number" ? signed(one.reward) : "–"),
      h("span", {}, one.evaluation ? `${one.evaluation}, task ${count(one.index)}` : `step ${count(one.step)}`),
      h("small", {}, `${count(one.tokens)} tokens · ${one.ending.replaceAll("_", " ")}`))));
    if (focused) this.list.querySelector("[tabindex='0']")?.focus({ preventScroll: true });
  }

  move(event) {
    const buttons = [...this.list.querySelectorAll("button")];
    const moves = { ArrowDown: 1, ArrowUp: -1, Home: -buttons.length, End: buttons.length };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(buttons.length - 1, buttons.indexOf(event.currentTarget) + moves[event.key]));
    buttons[next].focus();
    this.show(Number(buttons[next].dataset.ticket), false);
  }

  async show(ticket, reveal) {
    this.shown = ticket;
    for (const button of this.list.querySelectorAll("button")) {
      const chosen = Number(button.dataset.ticket) === ticket;
      button.setAttribute("aria-selected", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }
    const answer = await this.ask(`trajectories/${ticket}`);
    if (this.shown !== ticket) return;
    if (!answer) {
      put(this.detail, empty("This trajectory is not kept any more."));
      return;
    }
    this.one = answer;
    this.draw();
    if (reveal && window.innerWidth < 800) this.detail.scrollIntoView({ block: "start" });
  }

  draw() {
    const { one } = this;
    const sampled = one.turns.some((turn) => turn.sampled);
    const versions = [...new Set(one.turns.flatMap((turn) => turn.sampled?.versions ?? []))].sort((a, b) => a - b);
    const [oldest, newest] = one.version ?? [];
    put(this.detail,
      h("header", {},
        h("h3", {}, h("b", { class: sign(one.reward) }, `reward ${typeof one.reward === "number" ? signed(one.reward, 4) : "unknown"}`)),
        h("p", { class: "note" }, [`ticket ${one.ticket}`, one.evaluation ? `evaluation ${one.evaluation}, task ${count(one.index)}` : `step ${count(one.step)}, group ${count(one.group)}`,
          `version ${oldest === newest ? count(oldest) : `${count(oldest)} to ${count(newest)}`}`, `${count(one.tokens)} tokens`, `ended ${one.ending.replaceAll("_", " ")}`].join(" · ")),
        h("p", { class: "note" }, h("a", { href: `#trajectory-${one.ticket}` }, "link to this trajectory")),
        this.others("The group: the same task, sampled as often", one.siblings),
        this.others("The same task in each evaluation", one.evaluated),
        sampled ? this.colours(versions) : h("p", { class: "note" }, "Log-probs of single tokens were not kept for this one.")),
      one.turns.map((turn) => this.turn(turn, versions)));
  }

  /** Trajectories beside this one, each with how it begins. */
  others(title, rows) {
    if (rows.length < 2) return null;
    return [h("h4", {}, title), h("div", { class: "siblings" }, rows.map((row) => h("button", {
      type: "button", "aria-current": String(row.ticket === this.one.ticket), onclick: () => this.show(row.ticket, false),
    }, h("b", { class: sign(row.reward) }, typeof row.reward === "number" ? signed(row.reward) : "–"),
      ` ${row.evaluation || `${count(row.tokens)} tokens`} · ${row.ending.replaceAll("_", " ")}`, h("small", {}, row.said))))];
  }

  colours(versions) {
    const button = (name, text) => h("button", { type: "button", "aria-pressed": this.colour === name, onclick: () => {
      this.colour = name;
      this.draw();
      this.detail.querySelector("[aria-pressed=true]").focus();
    } }, text);
    return h("div", { class: "chips", role: "group", "aria-label": "Colour of tokens" },
      button("logprob", "log-prob"), button("version", "version"), button("none", "plain"),
      this.colour === "logprob" && h("span", { class: "scale" }, "certain ", [...Array(SHADES).keys()].map((shade) => h("i", { class: `p${shade}` })), ` ${FLOOR} nats or less`),
      this.colour === "version" && h("span", { class: "scale" }, versions.map((version, index) => [h("i", { class: `v${index % 6}` }), ` ${count(version)} `])));
  }

  turn(turn, versions) {
    const role = ROLES.includes(turn.role) ? turn.role : "user";
    return h("section", { class: `turn ${role}` },
      h("small", {}, turn.role, turn.tokens > 0 && ` · ${plural(turn.tokens, "token")}`),
      h("div", { class: "said" }, turn.sampled ? this.sampled(turn, versions) : turn.text || h("i", { class: "faint" }, "(nothing)")));
  }

  /** Its tokens, behind what was given and not sampled; the text again where not all of them were kept. */
  sampled(turn, versions) {
    const { texts } = turn.sampled;
    const given = turn.text.indexOf(texts.join(""));
    const missing = turn.tokens - texts.length;
    return [given > 0 && h("span", { class: "faint" }, turn.text.slice(0, given)), this.tokens(turn.sampled, versions),
      missing > 0 && h("p", { class: "note" }, `and ${plural(missing, "token")} that were not kept one by one; the whole text:`), missing > 0 && turn.text];
  }

  tokens({ texts, ids, logprobs, versions }, every) {
    return texts.map((text, index) => {
      const chance = logprobs[index];
      const shade = Math.min(SHADES - 1, Math.floor((Math.min(0, chance) / FLOOR) * SHADES));
      const tint = { logprob: `p${shade}`, version: `v${every.indexOf(versions[index]) % 6}`, none: "" }[this.colour];
      const token = h("span", { class: `token ${tint}`, tabindex: 0, "aria-label": `${text}, log-prob ${number(chance)}, version ${versions[index]}` }, text || "◦");
      return tipped(token, () => [`“${text}”`, `token ${ids[index]}`, `log-prob ${number(chance, 4)} (${number(Math.exp(chance) * 100, 3)} %)`, `version ${count(versions[index])}`]);
    });
  }
}

const sign = (reward) => (reward > 0 ? "good" : reward < 0 ? "bad" : "");
const labelled = (text, field) => h("label", {}, h("span", {}, text), field);

function select(name, choices) {
  const field = h("select", { "aria-label": name });
  options(field, choices);
  return field;
}

/** Choices of a field; what was chosen stays. */
function options(field, choices) {
  const { value } = field;
  if (field.options.length === choices.length && choices.every(([key], at) => field.options[at].value === key)) return;
  put(field, choices.map(([key, text]) => h("option", { value: key }, text)));
  field.value = choices.some(([key]) => key === value) ? value : "";
}
