"""A whole run whose engine is vLLM, and what it exports served by vLLM alone. `make test-vllm` runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from earl.config.run import RunConfig
from services.rollout.engines.process.interpreter import interpreter_of
from services.trainer.checkpoint.export import write
from tests.support import engines
from tests.support.chat_checkpoint import QWEN, chat_model

pytestmark = pytest.mark.skipif(
    "vllm" not in engines.SELECTED, reason="needs vLLM's environment: make test-vllm"
)

TICTACTOE = Path(__file__).resolve().parents[2] / "examples" / "tictactoe.toml"
MARK = "EARL_TEST_RUN"
SMALL = {
    "rollout.engine": "vllm",
    "rollout.device": "cpu",
    "rollout.max_sequences": "16",
    "stack.start_s": "300",
    # Heads of 32: the smallest that vLLM's attention on CPUs takes.
    "model.scratch.hidden_size": "64",
    "model.scratch.intermediate_size": "64",
    "model.scratch.layers": "1",
    "model.scratch.heads": "2",
    "model.scratch.kv_heads": "2",
    "warmup.batches": "2",
    "warmup.batch_episodes": "16",
    "warmup.minibatches": "1",
    "warmup.passes": "1",
    "trainer.minibatches": "1",
    "trainer.passes": "1",
    "trainer.checkpoint_every": "2",
    "scheduler.group_size": "4",
    "scheduler.batch_groups": "4",
    "scheduler.steps": "4",
    "scheduler.staleness": "0",
    "evaluation.episodes": "16",
}


CHAT = {
    "name": "chat",
    "environment": {"name": "e"},
    "model": {
        "path": "model",
        "chat": True,
        "system": 'You "have" a calculator.',
        "action_prefix": "The answer\nis",
    },
    "rollout": {"max_new_tokens": 6},
    "evaluation": {"temperature": 0.5},
}

# vLLM's own front end, without a line of EARL: a greedy answer and its log-probs.
SERVED = """
import json, sys
from vllm import LLM, SamplingParams

llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=64, max_num_seqs=4)
ids = json.loads(sys.argv[2])
sampling = SamplingParams(temperature=0.0, max_tokens=6, logprobs=0, ignore_eos=True)
(answer,) = llm.generate([{"prompt_token_ids": ids}], sampling)[0].outputs
picked = [step[token].logprob for step, token in zip(answer.logprobs, answer.token_ids)]
print(json.dumps({"ids": list(answer.token_ids), "logprobs": picked}))
"""


def marked(name: str) -> list[str]:
    """Command lines of live processes of this run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == name:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


# The same front end in its chat: the request's ids, its defaults for sampling, and the answer.
CHATTED = """
import json, sys
from vllm import LLM

llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4)
sampling = llm.get_default_sampling_params()
(done,) = llm.chat([{"role": "user", "content": sys.argv[2]}], sampling)
shown = {"ids": done.prompt_token_ids, "temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
shown["stop"] = llm.model_config.try_get_generation_config()["eos_token_id"]
print(json.dumps(shown | {"tokens": len(done.outputs[0].token_ids)}))
"""


def test_vllm_prompts_and_samples_an_export_as_its_run_did(tmp_path: Path):
    """Its chat finds the run's system prompt and action prefix in the chat template, and the temperature,
    the longest answer and the stop tokens in the generation config."""
    config = RunConfig.model_validate(CHAT)
    chat_model(tmp_path / "run" / "model", QWEN, head_size=32)
    (tmp_path / "run" / "run.json").write_text(config.model_dump_json())
    exported = tmp_path / "exported"
    record = write(tmp_path / "run", exported, 1, "float32").record
    question = "What is 594 - 451?"
    shown = in_vllm(CHATTED, exported, question)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    template = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": config.model.system},
            {"role": "user", "content": question},
        ],
        add_generation_prompt=True,
        tokenize=False,
        chat_template=QWEN,
    )
    prompt = f"{template}{config.model.action_prefix}"
    assert tokenizer.decode(shown["ids"]) == prompt
    assert (shown["temperature"], shown["max_tokens"]) == (0.5, 6) and shown["tokens"] <= 6
    assert shown["stop"] == list(record.stop_token_ids)


def test_a_run_trains_on_what_vllm_sampled(tmp_path: Path):
    dotted = [text for key, value in SMALL.items() for text in (f"--{key}", value)]
    name = f"v{os.getpid()}"
    command = [sys.executable, "-m", "earl.cli.main", "train", str(TICTACTOE), "--name", name]
    done = subprocess.run(
        [*command, "--runs-dir", str(tmp_path), *dotted, "--plain", "--json"],
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, MARK: name},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["issued"] == sum(figures[part] for part in ("trained", "evaluated", "dropped", "live"))
    records = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
    trained = [record for record in records if record["phase"] == "train"]
    assert len(trained) == 4
    # What vLLM said of each token and what the trainer computes for it are the same distribution.
    assert all(abs(record["logprob_mismatch"]) < 1e-4 for record in trained), trained
    assert marked(name) == []
    assert [file for file in os.listdir("/dev/shm") if name in file] == []
    assert_exported(tmp_path / name, tmp_path / "exported")


def assert_exported(run: Path, to: Path) -> None:
    """vLLM loads what `earl export` writes, and gives the log-probs that transformers computes from it."""
    command = [sys.executable, "-m", "earl.cli.main", "export", str(run), "--to", str(to)]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    ids = [3, 1, 4, 1, 5]
    served = in_vllm(SERVED, to, json.dumps(ids))
    model = AutoModelForCausalLM.from_pretrained(to, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([ids + served["ids"]])).logits[0, len(ids) - 1 : -1]
    computed = torch.log_softmax(logits, -1)
    assert served["ids"] == logits.argmax(-1).tolist()
    expected = computed.gather(-1, torch.tensor(served["ids"])[:, None]).squeeze(-1)
    torch.testing.assert_close(torch.tensor(served["logprobs"]), expected, atol=1e-4, rtol=0)


def in_vllm(program: str, model: Path, argument: str) -> dict[str, Any]:
    """Returns what a program in vLLM's environment prints of an exported model."""
    python = interpreter_of(engines.EngineSpec(name="exported", engine="vllm", model_dir=str(model)))
    done = subprocess.run(
        [python, "-c", program, str(model), argument],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(next(line for line in done.stdout.splitlines() if line.startswith('{"ids"')))
