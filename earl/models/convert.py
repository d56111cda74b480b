"""`python -m earl.models.convert FILE.gguf DIRECTORY` writes a checkpoint that transformers reads.

Quantised weights become float32, which holds every value of the file exactly. Tokenizer, chat template
and generation config are those of the GGUF, with what transformers leaves out of them put back.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig

# tokenizer.ggml.pre of a GGUF → the splitting before byte-level BPE that it stands for (llama.cpp's
# names). transformers reads the vocabulary and forgets this.
_PRE_TOKENIZERS = {
    "smollm": {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
}


def convert(file: Path, directory: Path) -> None:
    """Reads a Llama or Qwen GGUF, writes `directory`. Raises what transformers raises."""
    tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        str(file.parent),
        gguf_file=file.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    _restore_splitting(file, directory / "tokenizer.json")


def _restore_splitting(file: Path, tokenizer: Path) -> None:
    field = GGUFReader(file).fields.get("tokenizer.ggml.pre")
    name = field.contents() if field is not None else ""
    if name in _PRE_TOKENIZERS:
        written = json.loads(tokenizer.read_text(encoding="utf-8"))
        written["pre_tokenizer"] = _PRE_TOKENIZERS[name]
        tokenizer.write_text(json.dumps(written, ensure_ascii=False), encoding="utf-8")


def main() -> int:
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m earl.models.convert FILE.gguf DIRECTORY\n")
        return 2
    torch.set_num_threads(2)
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
