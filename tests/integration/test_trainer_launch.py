"""The agent of a trainer's ranks is told to end while torchrun has started none of them, or some."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path

from earl.loopback import is_loopback
from services.trainer.ranks.process_group import INTERFACES

ROOT = Path(__file__).resolve().parents[2]
RANK = "tests.support.signalled_rank"
# An agent that lets `at(number)` happen just before its number-th rank is started, from 1.
AGENT = """
import os, signal, subprocess, sys, time
from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
from services.trainer.launch import launch

directory, started = sys.argv[1], []

class Popen(subprocess.Popen):
    def __init__(self, *arguments, **options):
        at(len(started) + 1)
        super().__init__(*arguments, **options, pass_fds=[alive])
        started.append(self)

subprocess_handler.Popen = Popen
alive = int(sys.argv[2])
{at}
sys.exit(launch([directory], 2, "{rank}"))
"""


def test_ranks_of_one_machine_and_their_agent_listen_on_loopback_alone(tmp_path: Path) -> None:
    start = "import sys; from services.trainer.launch import launch; sys.exit(launch(sys.argv[1:], 2, {!r}))"
    command = [sys.executable, "-c", start.format("tests.support.listening_rank"), str(tmp_path)]
    unnamed = {name: value for name, value in os.environ.items() if name not in INTERFACES}
    subprocess.run(command, cwd=ROOT, env=unnamed, check=True, timeout=120)
    said = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2)]
    for one in said:
        assert one["agent"] and one["own"]
        assert all(is_loopback(address) for address in (*one["agent"], *one["own"])), said


def told(at: str, directory: Path) -> int:
    """The agent's exit code, once its ranks have ended, too. Raises TimeoutExpired if it stays."""
    code = AGENT.format(at=at, rank=RANK)
    ended, alive = os.pipe()  # agent and ranks hold the other end
    with subprocess.Popen(
        [sys.executable, "-c", code, str(directory), str(alive)], cwd=ROOT, pass_fds=[alive]
    ) as agent:
        os.close(alive)
        try:
            ended_with = agent.wait(60)
            assert select.select([ended], [], [], 60)[0], "a rank was left behind"
            return ended_with
        finally:
            os.close(ended)
            agent.kill()  # its ranks are sent SIGTERM


def test_told_before_there_is_a_rank_it_ends(tmp_path: Path) -> None:
    # The signal comes while the main thread waits in torch, as for another node.
    at = "def at(number):\n    os.kill(os.getpid(), signal.SIGTERM)\n    signal.pause()\n"
    assert told(at, tmp_path) == 0


def test_a_rank_that_is_forked_just_before_the_agent_ends_does_not_stay(tmp_path: Path) -> None:
    # The agent saw no rank, and ends; while it does, its main thread starts one.
    at = """
import threading
leaves, leave = threading.Event(), os._exit

def at(number):
    if number == 1:
        os.kill(os.getpid(), signal.SIGTERM)
        leaves.wait()

def late(code):
    leaves.set()
    while not started:
        time.sleep(0.01)
    open(directory + "/started", "w").close()
    leave(code)

os._exit = late
"""
    assert told(at, tmp_path) == 0
    assert (tmp_path / "started").exists() and not (tmp_path / "rank-0").exists()


def test_told_between_two_ranks_the_second_is_told_too(tmp_path: Path) -> None:
    at = """
def at(number):
    while number == 2 and not os.path.exists(directory + "/rank-0"):
        time.sleep(0.01)
    if number == 2:
        os.kill(os.getpid(), signal.SIGTERM)
        started[0].wait()
"""
    assert told(at, tmp_path) == 0
