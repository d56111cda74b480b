"""Judges by a model's files whether a run can load it: `python -m earl.models.probe`.

`[model]` as JSON on standard input; {"facts", "error"} as one line of JSON on standard output. A package's
model is not converted for this.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from earl.config.model import ModelConfig
from earl.config.packaged import gguf_file, packaged
from earl.errors import EarlError
from earl.models.source import resolve
from earl.models.spec import load_spec, spec_of_scratch
from earl.models.tokenizer import Tokenizer


def facts_of(config: ModelConfig) -> dict[str, Any]:
    """Facts of the configured model. Raises ModelNotFound, UnsupportedModel, ConfigError."""
    package = packaged(config.path)
    if package is not None:
        file, version = gguf_file(package)
        return {"path": str(file), "package": package.package, "version": version}
    if not config.path:
        spec, words = spec_of_scratch(config.scratch), len(config.scratch.words)
        size = spec.size_bytes(config.weight_dtype)
        return {"path": "", "words": words, "parameters": spec.parameters, "bytes": size}
    directory = resolve(config.path)
    spec = load_spec(directory)
    Tokenizer.load(directory, config)
    return {
        "path": str(directory),
        "family": spec.family,
        "parameters": spec.parameters,
        "bytes": spec.size_bytes(config.weight_dtype),
        "max_positions": spec.max_positions,
        "chat_template": config.chat,
    }


def main() -> None:
    result: dict[str, Any] = {"facts": {}, "error": None}
    try:
        result["facts"] = facts_of(ModelConfig.model_validate_json(sys.stdin.read()))
    except EarlError as error:
        result["error"] = {"message": error.message, "remedy": error.remedy}
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
