"""Every game and task that the adapters serve, one after the other: it plays to an end, within its bounds,
the same again from its seed, in another process too, and takes texts that mean nothing.

What cannot be served stands in tables beside the adapters (LEFT_OUT) and in docs/adapters.md.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from earl.env.adapters import textarena_moves
from earl.env.adapters.textarena_games import GAMES
from tests.support import sweep

ROOT = Path(__file__).resolve().parents[2]
# Minutes for each package on two cores.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]


def swept(package: str, hash_seed: int) -> dict[str, dict]:
    """Environment → what happened, found out in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.sweep", package],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=700,
        check=True,
    )
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.parametrize("package", list(sweep.MODULES))
def test_everything_served_plays(package):
    with ThreadPoolExecutor() as both:
        first, second = both.map(swept, [package, package], [1, 2])
    faults = {name: found["fault"] for name, found in first.items() if found["fault"]}
    expected = {}
    if package == "textarena":
        expected = {
            f"textarena/{id}": refusal
            for id, game in textarena_moves.ids().items()
            if (refusal := textarena_moves.refusal(id, GAMES[game]))
        }
    assert faults == expected
    different = {name for name in first if first[name] != second[name]}
    assert not different, f"not the same from one seed in two processes: {sorted(different)}"
