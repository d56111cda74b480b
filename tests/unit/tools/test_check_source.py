"""The source gate finds what it must, and passes what it should."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from tests.support.paths import ROOT

TOOL = ROOT / "tools" / "check_source.py"


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_source", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "planted",
    [
        "import pickle",
        "import pickle as p",
        "def f():\n    from pickle import loads",
        "import cPickle",
        "import cloudpickle",
        "from dill import dumps",
        "import marshal",
        "import shelve",
        "import importlib\nimportlib.import_module('pickle')",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "import yaml\nyaml.load(text)",
        "model = AutoModel.from_pretrained('x', trust_remote_code=True)",
        "model = AutoModel.from_pretrained('x', trust_remote_code=flag)",
        "import numpy as np\nnp.load('x')",
        "dist.broadcast_object_list(items)",
        "from earl.v1 import scheduler_pb2",
        "import earl.v1.scheduler_pb2 as pb",
        '"""Decides. Pure."""\nimport time',
        '"""Decides; pure, time is an argument."""\n\ndef late():\n    from torch.nn import Linear',
    ],
)
def test_a_planted_violation_is_found(gate: ModuleType, planted: str):
    found = gate.findings(planted, "services/trainer/step/step.py")
    assert found and all(remedy for _, _, remedy in found)


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("import json\njson.load(file)", "earl/config/load.py"),
        ("import yaml\nyaml.safe_load(text)", "earl/config/load.py"),
        ("from_pretrained('x', trust_remote_code=False)", "earl/models/tokenizer.py"),
        ("from earl.v1 import scheduler_pb2", "services/scheduler/api/codec.py"),
        ("from earl.v1 import events_pb2", "earl/bus/streams.py"),
        ("'import pickle'", "services/trainer/step/step.py"),
    ],
)
def test_what_is_allowed_passes(gate: ModuleType, source: str, path: str):
    assert gate.findings(source, path) == []


CATALOGUE = """
class EarlError(Exception): ...
class ConfigError(EarlError): ...
class EngineError(EarlError): ...
class EngineLost(EngineError): ...
class EnvironmentFailure(EarlError): ...
class EnvHostLost(EnvironmentFailure): ...
"""


def test_an_error_without_a_remedy_is_found(gate: ModuleType):
    errors = gate.demanding(CATALOGUE)
    assert errors == {"EarlError", "ConfigError", "EngineLost"}
    for planted in (
        "raise ConfigError('no')",
        "return errors.EngineLost('no', '')",
        "ConfigError('no', remedy='')",
    ):
        assert [what for _, what, _ in gate.findings(planted, "earl/x.py", errors)], planted
    for fine in ("ConfigError('no', 'do')", "ConfigError(*given)", "EngineError('no')", "EnvHostLost('no')"):
        assert gate.findings(fine, "services/x.py", errors) == []
    assert gate.findings("ConfigError('no')", "tests/x.py", errors) == []
