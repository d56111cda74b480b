"""A taskset of verifiers with a tool, which verifiers serves over MCP and calls itself."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

FACTS = {"ada": "engines", "grace": "compilers"}


class Facts(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "facts"

    @vf.tool
    def lookup(self, name: str) -> str:
        """Looks up what somebody is known for."""
        return FACTS.get(name, "nothing")


class FactConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class FactData(vf.TaskData):
    answer: str


class FactTask(vf.Task[FactData, vf.State, FactConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Facts(config.tools)]

    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return float(self.data.answer in trace.last_reply)


class FactTasksetConfig(vf.TasksetConfig):
    task: FactConfig = FactConfig()


class FactTaskset(vf.Taskset[FactTask, FactTasksetConfig]):
    def load(self):
        for index, (name, fact) in enumerate(FACTS.items()):
            prompt = f"What is {name} known for?"
            yield FactTask(FactData(idx=index, prompt=prompt, answer=fact), self.config.task)


__all__ = ["FactTaskset"]

if __name__ == "__main__":
    Facts.run()
