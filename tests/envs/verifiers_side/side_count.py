"""A taskset of verifiers with a user: says a number, and again, as long as it gets the next one."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

TURNS = 4


class CountData(vf.TaskData):
    start: int


class CountTask(vf.Task[CountData]):
    @vf.reward
    async def counted(self, trace: vf.Trace) -> float:
        replies = [message.content for message in trace.assistant_messages]
        wanted = [str(self.data.start + 2 * turn + 1) for turn in range(TURNS)]
        return sum(a == b for a, b in zip(replies, wanted, strict=False)) / TURNS


class CountTaskset(vf.Taskset[CountTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        index = 0
        while True:
            yield CountTask(CountData(idx=index, prompt=None, start=10 * index), self.config.task)
            index += 1


class CountEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            for turn in range(TURNS):
                said = task.data.start + 2 * turn
                segment = await interaction.turn(f"{said}?")
                if segment.terminated or segment.last_reply != str(said + 1):
                    break


__all__ = ["CountEnv", "CountTaskset"]
