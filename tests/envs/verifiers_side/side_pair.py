"""An environment of verifiers with two agents, both of which would be the one that is trained."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]


class PairTask(vf.Task[vf.TaskData]):
    @vf.reward
    async def done(self, trace: vf.Trace) -> float:
        return 1.0


class PairTaskset(vf.Taskset[PairTask, vf.TasksetConfig]):
    def load(self):
        yield PairTask(vf.TaskData(idx=0, prompt="hello"), self.config.task)


class PairEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        await agents.agent.run(task)
        await agents.agent.run(task)


__all__ = ["PairEnv", "PairTaskset"]
