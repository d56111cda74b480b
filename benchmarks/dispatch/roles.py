"""The processes of `earl bench dispatch`: producers, consumers and a controller, kept over all arms.

A role is told its work as one JSON line on stdin and answers with one on stdout. A round has three words:

    prepare ─► what was there before is freed, a producer's rows come to be ─► answer
    run     ─► answer "armed" ─► (a producer: the gate) ─► the arm's side ─► answer
    check   ─► whether a consumer has what it wanted, once everybody is done

Times are nanoseconds of the machine's monotonic clock, so that those of two processes compare.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.dispatch.arm import Arm
from benchmarks.dispatch.arms import ARMS
from benchmarks.dispatch.lines import answer, commands, main
from benchmarks.dispatch.member import Member, Round
from benchmarks.dispatch.pattern import DTYPE, HALF, Pattern, right


async def open_arms(me: Member, names: list[str]) -> dict[str, Arm]:
    """This side of every arm; answers with what the arms say that others must know."""
    arms, known = {name: ARMS[name]() for name in names}, me.known
    said: dict[str, Any] = {}
    for name, arm in arms.items():
        me.known = known.get(name, {})
        opened = await getattr(arm, f"open_{me.role}")(me)
        if opened is not None:
            said[name] = {"controller" if me.role == "controller" else str(me.rank): opened}
    answer(known=said)
    return arms


async def work(me: Member, arms: dict[str, Arm]) -> None:
    """Rounds until stdin ends."""
    # Every consumer's target is one piece of memory, touched once and kept.
    memory = np.ones(Pattern(me.rows).worker_bytes // DTYPE.itemsize if me.role == "consumer" else 0, DTYPE)
    async for said in commands():
        do, round_ = said.pop("do"), Round(**said)
        arm = arms[round_.arm]
        if do == "prepare":
            await me.forget()
            if me.role == "producer":
                await arm.prepare_producer(me, round_)
            else:
                me.array = memory[: 2 * round_.rows * HALF].reshape(-1, HALF) if memory.size else me.array
                await arm.prepare(me, round_)
            answer()
        elif do == "run":
            answer(armed=True)
            await run(me, arm, round_)
        else:
            answer(right=right(me.array, round_.pattern.wanted(me.rank), round_.number))


async def run(me: Member, arm: Arm, round_: Round) -> None:
    """This side of a round; answers when it was done."""
    if me.role == "producer":
        me.pass_gate()
        done = await arm.produce(me, round_)
    elif me.role == "controller":
        done = await arm.control(me, round_)
    else:
        done = await arm.consume(me, round_)
    at_ns = time.monotonic_ns()
    answer(at_ns=at_ns, **asdict(done))


async def serve(role: dict[str, Any]) -> None:
    me = Member(role)
    arms = await open_arms(me, role["arms"])
    try:
        await work(me, arms)
    finally:
        for arm in arms.values():
            await arm.close()
        await me.close()


if __name__ == "__main__":
    main(dict.fromkeys(("producer", "consumer", "controller"), serve))
