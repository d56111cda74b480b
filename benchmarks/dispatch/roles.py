"""The processes of `earl bench dispatch`: producers, consumers and a controller, the same for all arms.

A role reads its work as JSON lines on stdin and answers each with a line on stdout. Commands of a round:

    prepare ─► the last round's memory is freed, a producer writes its rows ─► answer
    run     ─► answer "armed" ─► (a producer: the gate) ─► the arm's side ─► answer
    check   ─► whether a consumer's buffer is right, once everybody is done

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
    """Opens this side of every arm and answers with what the other processes must know of it."""
    arms, known = {name: ARMS[name]() for name in names}, me.known
    opened_arms: dict[str, Any] = {}
    for name, arm in arms.items():
        me.known = known.get(name, {})
        opened = await getattr(arm, f"open_{me.role}")(me)
        if opened is not None:
            opened_arms[name] = {"controller" if me.role == "controller" else str(me.rank): opened}
    answer(known=opened_arms)
    return arms


async def work(me: Member, arms: dict[str, Arm]) -> None:
    """Runs rounds until stdin ends."""
    # Every consumer's target is one piece of memory, touched once and kept.
    memory = np.ones(Pattern(me.rows).worker_bytes // DTYPE.itemsize if me.role == "consumer" else 0, DTYPE)
    async for command in commands():
        do, round_ = command.pop("do"), Round(**command)
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
            answer(right=right(me.array, round_.pattern.target_box(me.rank), round_.number))


async def run(me: Member, arm: Arm, round_: Round) -> None:
    """Runs this side of a round and answers with the time at which it was done."""
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
