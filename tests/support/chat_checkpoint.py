"""Small checkpoints with a chat template, of several families."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer as Library
from tokenizers import decoders, models, pre_tokenizers

from earl.config.model import ScratchModel
from earl.models.create import write_scratch

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Tools' answers as Qwen shows them, and its way of naming the assistant's own text.
QWEN = (
    "{%- for message in messages %}\n"
    "    {%- if message.role == 'tool' %}\n"
    "        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content }}\n"
    "        {{- '\\n</tool_response><|im_end|>\\n' }}\n"
    "    {%- else %}\n"
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}\n"
)
# Contents are trimmed, and a begin-of-sequence token comes first, as Llama 3 does it.
LLAMA = (
    "{{- bos_token }}{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + "
    "message['content'] | trim + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
GENERATION = CHATML.replace(
    "{{'<|im_start|>' + message['role']", "{% generation %}{{'<|im_start|>' + message['role']"
).replace("'\n'}}{% endfor %}", "'\n'}}{% endgeneration %}{% endfor %}")
TEMPLATES = {"chatml": CHATML, "qwen": QWEN, "llama": LLAMA, "generation": GENERATION}
SPECIALS = ["<|begin|>", "<|im_start|>", "<|im_end|>"]


def checkpoint(directory: Path, template: str) -> Path:
    """A byte-level tokenizer whose merges cross from a template's text into a content's."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("Ċ", "Ċ"), ("a", "b"), ("ĊĊ", "Ċ"), ("Ġ", "a")]
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, *map("".join, merges)])}
    tokenizer = Library(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIALS)
    tokenizer.save(str(directory / "tokenizer.json"))
    written = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "bos_token": {"__type": "AddedToken", "content": "<|begin|>"},
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(written))
    (directory / "chat_template.jinja").write_text(template)
    return directory


def chat_model(directory: Path, template: str = CHATML, head_size: int = 8) -> Path:
    """A whole model with that tokenizer: a Llama of random weights, two heads of head_size."""
    vocabulary = len(pre_tokenizers.ByteLevel.alphabet()) + 4 + len(SPECIALS)
    scratch = ScratchModel(
        hidden_size=2 * head_size,
        intermediate_size=16,
        layers=1,
        heads=2,
        kv_heads=2,
        max_positions=512,
        # The four special tokens of a scratch model count, too; its tokenizer is replaced.
        words=[f"w{number}" for number in range(vocabulary - 4)],
    )
    write_scratch(directory, scratch, 0, "float32")
    return checkpoint(directory, template)
