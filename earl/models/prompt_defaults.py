"""A chat template that has a run's system prompt and action prefix as its defaults, and the way back. Pure.

    system prompt ── added to messages that have none
    ┌──────────────────────────────┐
    │ the model's own template     │   unchanged
    └──────────────────────────────┘
    action prefix ── after the generation prompt, if one is asked for

`with_defaults` makes it, for transformers, vLLM and SGLang. `model_template` takes the middle out again:
EARL has both texts from its run file.
"""

from __future__ import annotations

import json
import re

_MODEL_TEMPLATE = "{# The model's own chat template, to the next comment of this kind. #}"
_END = "{#+ The model's own chat template ends here. #}"
_LINE_END = re.compile(r"(\r\n|\r|\n)\Z")


def with_defaults(template: str, system: str, action_prefix: str) -> str:
    """The template as it is, with the two texts where they are not empty."""
    if not system and not action_prefix:
        return template
    # Jinja drops one line end at the end of a template. In the middle of a template it would be kept.
    parts = [f"{_MODEL_TEMPLATE}\n", _LINE_END.sub("", template), _END]
    if system:
        parts.insert(
            0,
            "{%- if 'system' not in messages | map(attribute='role') | list %}"
            f"{{% set messages = [{{'role': 'system', 'content': {_literal(system)}}}] + messages | list %}}"
            "{% endif %}\n",
        )
    if action_prefix:
        parts.append(f"{{% if add_generation_prompt %}}{{{{ {_literal(action_prefix)} }}}}{{% endif %}}")
    return "".join(parts)


def model_template(template: str) -> str:
    """The model's own part of what `with_defaults` made; any other template as it is."""
    start, end = template.find(f"{_MODEL_TEMPLATE}\n"), template.rfind(_END)
    if not 0 <= start < end:
        return template
    # With the line end that Jinja drops, as if the template had one.
    return template[start + len(_MODEL_TEMPLATE) + 1 : end] + "\n"


def _literal(text: str) -> str:
    """A text as Jinja reads it. Its escapes are Python's: \\u of half a character would not be one."""
    return json.dumps(text, ensure_ascii=False)
