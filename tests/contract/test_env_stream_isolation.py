"""Processes of an env host's own, seen from a client: deadlines kill them, crashes are ENV_ERROR."""

import os
from dataclasses import replace

import pytest

from earl.env import Ending
from earl.errors import DeadlineExceeded
from tests.contract.test_env_stream_host import LIMITS, hosting, playing, serving
from tests.support.apart import Apart


async def test_a_stuck_process_is_killed_at_its_deadline_and_a_crash_ends_one_episode():
    async with serving(lease_s=20) as (_, address), hosting(address, Apart), playing(address) as client:
        beside = await client.open("test/apart", limits=LIMITS)
        pid = beside.observation.text
        stuck = await client.open("test/apart", limits=replace(LIMITS, step_s=0.3))
        lost = int(stuck.observation.text)
        with pytest.raises(DeadlineExceeded, match="step 1 took longer than"):
            await stuck.step("spin")
        crashing = await client.open("test/apart", limits=LIMITS)
        outcome = await crashing.step("segfault")
        assert outcome.ending is Ending.ENV_ERROR
        assert outcome.message.startswith(
            "EnvironmentCrashed: the process of test/apart was killed by SIGSEGV"
        )
        outcome = await beside.step("end")
        assert (outcome.ending, outcome.observation.text.split()[0]) == (Ending.OK, pid)
        with pytest.raises(ProcessLookupError):
            os.kill(lost, 0)
