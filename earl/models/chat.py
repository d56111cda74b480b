"""A checkpoint's own chat template, split into the parts before and after a message's content.

    first:   [system] [observation]⟨content⟩ [generation prompt]
    later:   …the model's own tokens… [end of its turn] [observation]⟨content⟩ [generation prompt]

Only the template's parts may name control tokens; contents are plain text (earl.models.tokenizer). The
frames come from rendering placeholders, so that what the model wrote is never rendered, and so never
tokenised, again. Templates run in jinja2's sandbox as transformers runs them, but without a clock: the
same messages always give the same tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from earl.errors import ConfigError, ModelNotFound
from earl.models.prompt_defaults import model_template

# Stand for contents while a template is rendered; no template changes or contains them.
_OBSERVATION = "EARLobservationEARL"
_ACTION = "EARLactionEARL"
# The form of tools' answers in a template without a role for them (that of the Hermes models).
TOOL_FORM = ("<tool_response>\n", "\n</tool_response>")
_TOOL_ROLE = re.compile(r"""['"]tool['"]""")


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """The template's text around one content. strip: the template drops white space around contents."""

    before: str
    after: str
    strip: bool = False


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks the assistant's text, which it shows unchanged."""

    tags: ClassVar[set[str]] = {"generation"}

    def parse(self, parser: Parser) -> Any:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """first: the frame of the first observation. later: frames of those after an action, by role ("user",
    "tool"); they begin with what ends the model's own turn.

    Raises ConfigError if the template cannot show a user, an assistant and what comes after.
    """

    def __init__(self, source: str, specials: Mapping[str, str], system: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        self._specials = dict(specials)
        self._system = [{"role": "system", "content": system}] if system else []
        try:
            self._template = environment.from_string(source)
            self.first = self._frame([], "user")
            tool = self._later("tool") if _TOOL_ROLE.search(source) else self._later("user", *TOOL_FORM)
            self.later = {"user": self._later("user"), "tool": tool}
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ConfigError(
                f"the checkpoint's chat template cannot be used: {error}",
                "set model.chat = false, or correct its chat_template.jinja",
            ) from None

    @classmethod
    def load(cls, directory: str | Path, system: str = "") -> ChatTemplate:
        """The template of a checkpoint, without the defaults that `earl export` added to it.

        Raises ConfigError if it has none, ModelNotFound if a file cannot be read.
        """
        source, written = read_template(directory)
        if not source:
            raise ConfigError(
                f"model.chat = true, and {str(directory)!r} has no chat template",
                "give an instruction-tuned checkpoint, or set model.chat = false",
            )
        specials = {name: _text(written[name]) for name in written if name.endswith("_token")}
        return cls(source, {name: text for name, text in specials.items() if text}, system)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """The messages and the prompt for the assistant's next one."""
        return self._template.render(
            messages=[dict(message) for message in messages],
            add_generation_prompt=True,
            tools=None,
            documents=None,
            **self._specials,
        )

    def _later(self, role: str, opening: str = "", closing: str = "") -> ChatFrame:
        before = [{"role": "user", "content": "x"}, {"role": "assistant", "content": _ACTION}]
        frame = self._frame(before, role, opening, closing)
        _, shown, ending = frame.before.rpartition(_ACTION)
        if not shown:
            raise jinja2.TemplateError("it does not show the assistant's message")
        return ChatFrame(ending, frame.after, frame.strip)

    def _frame(
        self, before: list[dict[str, str]], role: str, opening: str = "", closing: str = ""
    ) -> ChatFrame:
        content = f"{opening} {_OBSERVATION} {closing}"
        text = self.render([*self._system, *before, {"role": role, "content": content}])
        start, shown, end = text.partition(_OBSERVATION)
        if not shown or _OBSERVATION in end:
            raise jinja2.TemplateError(f"it does not show the {role}'s message exactly once")
        kept = start.endswith(" ") and end.startswith(" ")
        return ChatFrame(start.removesuffix(" "), end.removeprefix(" "), strip=not kept)


def read_template(directory: str | Path) -> tuple[str, Mapping[str, Any]]:
    """(a checkpoint's own chat template, "" if it has none; its tokenizer_config.json, {} without one).

    The template is that of chat_template.jinja, or else the one that tokenizer_config.json names "default".
    Raises ModelNotFound if a file cannot be read.
    """
    file, written = Path(directory) / "tokenizer_config.json", {}
    try:
        if file.is_file():
            written = json.loads(file.read_text(encoding="utf-8"))
        jinja = Path(directory) / "chat_template.jinja"
        source = jinja.read_text(encoding="utf-8") if jinja.is_file() else written.get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise ModelNotFound(f"{file.parent}: {error}", "save the tokenizer again") from None
    if isinstance(source, list):  # several templates with names
        source = {entry["name"]: entry["template"] for entry in source}.get("default")
    return model_template(source or ""), written


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **other: Any) -> str:
    """transformers' filter: JSON as it is, not escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **other)


def _raise(message: str) -> str:
    raise jinja2.TemplateError(message)


def _text(token: Any) -> str:
    """The text of a token in tokenizer_config.json, written as itself or as a table."""
    text = token.get("content") if isinstance(token, Mapping) else token
    return text if isinstance(text, str) else ""
