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
        return sum(len(text) for row in self.rows for sample in row for _, text, _ in turns_of(sample))


def conversations(samples: Sequence[Record]) -> tuple[str, str]:
    """(body, CSS rules of the buttons); a note and no rules without samples."""
    every = choices(samples)
    if not every:
        return '<p class="empty">No conversation was recorded in this run.</p>', ""
    shown = within(offered(every, CHOICES), TEXT_CHARACTERS)
    first = next((place for place, choice in enumerate(shown) if choice.name == BOTH), len(shown) - 1)
    buttons, labels, bodies, rules = [], [], [], []
    for place, choice in enumerate(shown):
        checked = " checked" if place == first else ""
        buttons.append(f'<input type="radio" name="sample" id="s{place}"{checked}>')
        labels.append(f'<label for="s{place}">{escape(choice.name)}</label>')
        rows = "".join(f'<div class="row">{"".join(map(article, row))}</div>' for row in choice.rows)
        bodies.append(f'<div class="at s{place}">{rows}</div>')
        rules.append(
            f"#s{place}:checked~.s{place}{{display:block}}"
            f"#s{place}:checked~.chips label[for=s{place}]{{background:var(--c0);color:var(--card)}}"
            f"#s{place}:focus-visible~.chips label[for=s{place}]{{outline:2px solid var(--c2)}}"
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
    by_name: dict[str, list[Record]] = {}
    for sample in samples:
        evaluation = str(sample.get("evaluation") or "")
        by_name.setdefault(
            f"evaluation {evaluation}" if evaluation else f"step {sample.get('step')}", []
        ).append(sample)
    every = [Choice(name, [[sample] for sample in rows]) for name, rows in by_name.items()]
    starts = {sample.get("index"): sample for sample in by_name.get("evaluation start", [])}
    pairs = [
        [starts[sample.get("index")], sample]
        for sample in sorted(
            by_name.get("evaluation final", []), key=lambda sample: str(sample.get("index")).zfill(9)
        )
        if sample.get("index") in starts
    ]
    return [Choice(BOTH, pairs), *every] if pairs else every


def offered(every: Sequence[Choice], most: int) -> list[Choice]:
    """At most `most` of them in their order: up to half are evaluations, the rest steps of training."""
    evaluations = spread([choice for choice in every if not choice.name.startswith("step ")], most // 2)
    steps = spread([choice for choice in every if choice.name.startswith("step ")], most - len(evaluations))
    names = {choice.name for choice in (*evaluations, *steps)}
    return [choice for choice in every if choice.name in names]


def spread(every: Sequence[Choice], most: int) -> list[Choice]:
    """At most `most` of them: the first, the last, and evenly between."""
    if len(every) <= most:
        return list(every)
    return [every[round(place * (len(every) - 1) / (most - 1))] for place in range(most)]


def within(shown: list[Choice], characters: int) -> list[Choice]:
    """Without those in the middle that would make the page too large."""
    kept = list(shown)
    while len(kept) > 1 and sum(choice.characters for choice in kept) > characters:
        del kept[len(kept) // 2]
    return kept


def turns_of(sample: Record) -> list[tuple[str, str, int]]:
    """(role, text, tokens) of each turn."""
    turns = sample.get("turns")
    turns_with_tokens = []
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, Mapping):
            tokens = turn.get("tokens")
            turns_with_tokens.append(
                (str(turn.get("role")), str(turn.get("text")), tokens if isinstance(tokens, int) else 0)
            )
    return turns_with_tokens


def article(sample: Record) -> str:
    """One trajectory: what became of it, then what was said."""
    turns = "".join(bubble(role, text, tokens) for role, text, tokens in turns_of(sample))
    return f'<article><p class="head">{heading(sample)}</p>{turns}</article>'


def heading(sample: Record) -> str:
    reward = sample.get("reward")
    evaluation = sample.get("evaluation")
    sign = ""
    if isinstance(reward, (int, float)) and reward:
        sign = "good" if reward > 0 else "bad"
    parts = [
        f"evaluation {evaluation}, task {sample.get('index')}"
        if evaluation
        else f"step {sample.get('step')}",
        f"version {versions(sample.get('version'))}",
        f"{sample.get('tokens')} tokens",
        f"ended {sample.get('ending')}",
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
    shown = escape(visible(text)) or "<i>(nothing)</i>"
    return f'<div class="turn {kind}"><small>{escape(role)}{counted}</small><div>{shown}</div></div>'
