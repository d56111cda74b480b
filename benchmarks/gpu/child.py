"""The process of one check: `python -m benchmarks.gpu.child MODULE:FUNCTION SETTINGS OUTCOME`.

SETTINGS: CheckSettings as JSON text. OUTCOME: the file that gets the outcome as JSON; there is none if the
process dies.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu.check import FAILED, OK, SKIPPED, CheckFailed, CheckSettings, CheckSkipped


def settings_of(text: str) -> CheckSettings:
    values = json.loads(text)
    return CheckSettings(
        values["device"],
        values["gpus"],
        values["sizes"],
        Path(values["directory"]),
        Path(values["arenas"]),
    )


def outcome_of(function: str, settings: CheckSettings) -> dict[str, Any]:
    """Runs the check here; whatever it raises becomes its outcome."""
    module, _, name = function.partition(":")
    try:
        whole = module if "." in module else f"benchmarks.gpu.{module}"
        result = getattr(importlib.import_module(whole), name)(settings)
        return {"outcome": OK, "figures": dict(result.figures), "tolerance": dict(result.tolerance)}
    except CheckSkipped as error:
        return {"outcome": SKIPPED, "reason": str(error)}
    except CheckFailed as error:
        return {
            "outcome": FAILED,
            "reason": str(error),
            "figures": error.figures,
            "tolerance": error.tolerance,
        }
    except Exception as error:  # noqa: BLE001 - one check's failure is a row, and never the others'
        traceback.print_exc()
        return {"outcome": FAILED, "reason": f"{type(error).__name__}: {error}"}


def main() -> int:
    function, settings, path = sys.argv[1:]
    outcome = outcome_of(function, settings_of(settings))
    Path(path).write_text(json.dumps(outcome), encoding="utf-8")
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of gloo, CUDA and the data plane are not waited for: the outcome is written.
    os._exit(0)


if __name__ == "__main__":
    main()
