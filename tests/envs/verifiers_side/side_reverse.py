"""A taskset of verifiers with one turn: reverse a word. Trouble on demand."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

WORDS = [f"{first}{second}" for first in ("ab", "cd", "ef", "gh") for second in ("ij", "kl", "mn", "op")]


class WordData(vf.TaskData):
    answer: str


class WordTask(vf.Task[WordData]):
    @vf.stop
    async def one_turn(self, trace: vf.Trace) -> bool:
        return trace.num_turns >= 1

    @vf.reward(weight=0.5)
    async def right(self, trace: vf.Trace) -> float:
        if "trouble" in trace.last_reply:
            raise RuntimeError("the judge is ill")
        return float(self.data.answer in trace.last_reply)

    @vf.reward(weight=0.5)
    async def brief(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply) <= 10)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class WordTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self):
        for index, word in enumerate(WORDS):
            data = WordData(idx=index, prompt=word, system_prompt="Reverse the word.", answer=word[::-1])
            yield WordTask(data, self.config.task)


__all__ = ["WordTaskset"]
