"""A run's system prompt and action prefix in a chat template: transformers gives the tokens of EARL."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from earl.config.model import ModelConfig
from earl.models.prompt_defaults import model_template, with_defaults
from earl.models.tokenizer import Tokenizer
from tests.support.chat_checkpoint import CHATML, SPECIALS, TEMPLATES, checkpoint

texts = st.text(st.sampled_from("ab \n\"'\\{}%#<|>é😀\u2028"), max_size=12)
# Where Jinja drops white space: at the edges of a template and beside its blocks.
EDGES = {
    "line end": CHATML + "\n",
    "two line ends": CHATML + "\n\n",
    "blank last line": CHATML + "\n  ",
    "indented": "  \n  " + CHATML,
    "trimmed": CHATML.replace("{% if add", "{%- if add").replace("{% endif %}", "{%- endif -%}\n"),
    "sets messages": "{% set messages = messages[:] %}\n" + CHATML,
    "text at the end": CHATML + "a\n\n",
    "comment at the end": CHATML + "{# x #}",
}


@pytest.fixture(params=[*TEMPLATES, *EDGES])
def template(request: pytest.FixtureRequest) -> str:
    return (TEMPLATES | EDGES)[request.param]


def theirs_of(directory: Path, template: str):
    checkpoint(directory, template)
    return AutoTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("system", ["", "Be \"brief\": {{ x }}, {% y %} and\n\\n 'é😀'."])
@pytest.mark.parametrize("prefix", ["", "It is\n'x' {%", "<|im_start|>{{ y }}"])
def test_an_episode_begins_with_the_same_tokens(
    tmp_path: Path, template: str, system: str, prefix: str
) -> None:
    config = ModelConfig(chat=True, system=system, action_prefix=prefix)
    expected = Tokenizer.load(checkpoint(tmp_path, template), config)
    theirs = theirs_of(tmp_path, with_defaults(template, system, prefix))
    again = Tokenizer.load(tmp_path, config)
    for observation in ("ab", "What is 1 + 1?\n", " a"):
        ids = expected.encode_observation(observation, True)
        messages = [{"role": "user", "content": observation}]
        assert theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"] == ids
        # EARL reads it back without adding either text a second time.
        assert again.encode_observation(observation, True) == ids
        assert again.encode_observation(observation, False) == expected.encode_observation(observation, False)


def test_messages_with_a_system_prompt_keep_theirs(tmp_path: Path, template: str) -> None:
    messages = [{"role": "system", "content": "Other."}, {"role": "user", "content": "a"}]
    plain = theirs_of(tmp_path, template)
    changed = with_defaults(template, "Be brief.", "It is")
    before = plain.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    after = plain.apply_chat_template(
        messages, chat_template=changed, add_generation_prompt=True, tokenize=False
    )
    assert after == before + "It is"
    for asked in (messages, [*messages, {"role": "assistant", "content": "It is b"}]):
        shown = [
            plain.apply_chat_template(asked, chat_template=source, tokenize=False)
            for source in (template, changed)
        ]
        assert shown[0] == shown[1]


@given(texts, texts)
def test_any_text_is_written_as_it_is(system: str, prefix: str) -> None:
    source = "{% for m in messages %}[{{ m.role }}|{{ m.content }}]{% endfor %}"
    messages = [[{"role": "user", "content": "a"}]]
    changed = with_defaults(source, system, prefix)
    (shown,), _ = render_jinja_template(messages, chat_template=changed, add_generation_prompt=True)
    assert shown == (f"[system|{system}]" if system else "") + "[user|a]" + prefix


def test_the_models_own_template_comes_back(template: str) -> None:
    assert model_template(template) == template == with_defaults(template, "", "")
    once = with_defaults(template, "Be brief.", "It is")
    own = model_template(once)
    assert own == template.removesuffix("\n") + "\n"
    assert with_defaults(own, "Other.", "") == with_defaults(template, "Other.", "")


def test_control_tokens_of_the_texts_are_control_tokens(tmp_path: Path) -> None:
    theirs = theirs_of(tmp_path, with_defaults(CHATML, "", SPECIALS[1]))
    ids = theirs.apply_chat_template([{"role": "user", "content": "a"}], add_generation_prompt=True)
    assert ids["input_ids"][-1] == theirs.convert_tokens_to_ids(SPECIALS[1])
