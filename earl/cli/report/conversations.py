"""Sample trajectories as conversations: text stays text, and a step is chosen without a script.

One radio button per step, all before the conversations, whose CSS rule shows those of its step. Every
string comes from a model or an environment: it is escaped, and control characters are made visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from earl.visible import visible

Record = Mapping[str, object]

# Choices offered; more steps than that are spread evenly. Characters of all conversations together.
CHOICES = 24
TEXT_CHARACTERS = 1_000_000
ROLES = ("system", "user", "tool", "assistant")


@dataclass(frozen=True, slots=True)
class Choice:
    """What one button shows: rows of conversations that stand side by side."""

    name: str
    rows: Sequence[Sequence[Record]]

    @property
    def characters(self) -> int:
        return sum(len(text) for row in self.rows for one in row for _, text, _ in turns_of(one))


def conversations(samples: Sequence[Record]) -> tuple[str, str]:
    """(body, CSS rules of the buttons); a note and no rules without samples."""
    every = choices(samples)
    if not every:
        return '<p class="empty">No conversation was recorded in this run.</p>', ""
    shown = within(offered(every, CHOICES), TEXT_CHARACTERS)
    first = next((at for at, one in enumerate(shown) if one.name == BOTH), len(shown) - 1)
    buttons, labels, bodies, rules = [], [], [], []
    for at, choice in enumerate(shown):
        checked = " checked" if at == first else ""
        buttons.append(f'<input type="radio" name="sample" id="s{at}"{checked}>')
        labels.append(f'<label for="s{at}">{escape(choice.name)}</label>')
        rows = "".join(f'<div class="row">{"".join(map(article, row))}</div>' for row in choice.rows)
        bodies.append(f'<div class="at s{at}">{rows}</div>')
        rules.append(
            f"#s{at}:checked~.s{at}{{display:block}}"
            f"#s{at}:checked~.chips label[for=s{at}]{{background:var(--c0);color:var(--card)}}"
            f"#s{at}:focus-visible~.chips label[for=s{at}]{{outline:2px solid var(--c2)}}"
        )
    note = "Chosen by their place in the batch, not by how they went."
    if len(shown) < len(every):
        note += f" {len(shown)} of {len(every)} choices; samples.jsonl in the run's directory has more."
    body = (
        f'<p class="note">{note}</p>{"".join(buttons)}'
        f'<div class="chips">{"".join(labels)}</div>{"".join(bodies)}'
    )
    return body, "".join(rules)


BOTH = "before and after"


def choices(samples: Sequence[Record]) -> list[Choice]:
    """Steps and evaluations in order; first, if there are both, the same tasks before and after training."""
    found: dict[str, list[Record]] = {}
    for one in samples:
        evaluation = str(one.get("evaluation") or "")
        found.setdefault(f"evaluation {evaluation}" if evaluation else f"step {one.get('step')}", []).append(
            one
        )
    every = [Choice(name, [[one] for one in rows]) for name, rows in found.items()]
    starts = {one.get("index"): one for one in found.get("evaluation start", [])}
    pairs = [
        [starts[one.get("index")], one]
        for one in sorted(found.get("evaluation final", []), key=lambda one: str(one.get("index")).zfill(9))
        if one.get("index") in starts
    ]
    return [Choice(BOTH, pairs), *every] if pairs else every


def offered(every: Sequence[Choice], most: int) -> list[Choice]:
    """At most `most` of them in their order: up to half are evaluations, the rest steps of training."""
    evaluations = spread([one for one in every if not one.name.startswith("step ")], most // 2)
    steps = spread([one for one in every if one.name.startswith("step ")], most - len(evaluations))
    names = {one.name for one in (*evaluations, *steps)}
    return [one for one in every if one.name in names]


def spread(every: Sequence[Choice], most: int) -> list[Choice]:
    """At most `most` of them: the first, the last, and evenly between."""
    if len(every) <= most:
        return list(every)
    return [every[round(at * (len(every) - 1) / (most - 1))] for at in range(most)]


def within(shown: list[Choice], characters: int) -> list[Choice]:
    """Without those in the middle that would make the page too large."""
    kept = list(shown)
    while len(kept) > 1 and sum(one.characters for one in kept) > characters:
        del kept[len(kept) // 2]
    return kept


def turns_of(one: Record) -> list[tuple[str, str, int]]:
    """(role, text, tokens) of each turn."""
    turns = one.get("turns")
    found = []
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, Mapping):
            tokens = turn.get("tokens")
            found.append(
                (str(turn.get("role")), str(turn.get("text")), tokens if isinstance(tokens, int) else 0)
            )
    return found


def article(one: Record) -> str:
    """One trajectory: what became of it, then what was said."""
    turns = "".join(bubble(role, text, tokens) for role, text, tokens in turns_of(one))
    return f'<article><p class="head">{heading(one)}</p>{turns}</article>'


def heading(one: Record) -> str:
    reward = one.get("reward")
    evaluation = one.get("evaluation")
    sign = ""
    if isinstance(reward, (int, float)) and reward:
        sign = "good" if reward > 0 else "bad"
    parts = [
        f"evaluation {evaluation}, task {one.get('index')}" if evaluation else f"step {one.get('step')}",
        f"version {versions(one.get('version'))}",
        f"{one.get('tokens')} tokens",
        f"ended {one.get('ending')}",
    ]
    value = f"{reward:{'+' if reward else ''}.4g}" if isinstance(reward, (int, float)) else "unknown"
    return f'<b class="{sign}">reward {value}</b> {escape(" · ".join(parts))}'


def versions(of: object) -> str:
    """The version that sampled it; both ends if weights changed on the way."""
    if not isinstance(of, list) or not of:
        return "unknown"
    return str(of[0]) if of[0] == of[-1] else f"{of[0]} to {of[-1]}"


def bubble(role: str, text: str, tokens: int) -> str:
    """What one side said."""
    kind = role if role in ROLES else "user"
    counted = f" · {tokens} token{'s' if tokens != 1 else ''}" if tokens else ""
    said = escape(visible(text)) or "<i>(nothing)</i>"
    return f'<div class="turn {kind}"><small>{escape(role)}{counted}</small><div>{said}</div></div>'
