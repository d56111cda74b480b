"""The task with a Python tool: what programs earn, answers, and that a program can do no harm."""

import pytest

from earl.env import Action, ToolCall
from earl.env.adapters import python_tool
from earl.env.adapters.held_out import EVALUATION_BIT
from earl.env.adapters.python_tool import ANSWERED, CALLED, COMPUTED, KINDS, PythonTool, call_of
from earl.env.sandbox import Sandbox, SandboxLimits
from earl.errors import SandboxUnavailable, ServiceUnavailable
from tests.support.episodes import seen


def begun(seed=3, **task):
    environment = PythonTool()
    return environment, environment.reset(seed, task)


def test_it_is_served_where_code_can_be_confined(monkeypatch):
    assert python_tool.environments() == [PythonTool]
    monkeypatch.setattr("earl.env.sandbox._PYTHON", ("/bin/false",))
    with pytest.raises(SandboxUnavailable):
        python_tool.environments()


def test_every_kind_has_a_program_that_computes_its_answer():
    codes, answers = [], []
    for seed, kind in enumerate(KINDS):
        question = begun(seed, kinds=[kind], numbers=4)[0].question
        codes.append(f"print({question.code()})")
        answers.append(str(question.answer))
    assert Sandbox().run("\n".join(codes)).output.split() == answers


async def test_a_question_is_computed_and_answered():
    environment, first = begun(kinds=["spread"], numbers=3)
    question = environment.question
    assert first.text.startswith(question.text) and call_of(question.code()) in first.legal_actions
    ran = await environment.step(f"Let me see. {call_of(question.code())}")
    assert (ran.done, seen(ran).role, seen(ran).text) == (False, "tool", str(question.answer))
    assert ran.reward == pytest.approx(CALLED + COMPUTED)
    assert list(seen(ran).legal_actions) == [str(question.answer), str(question.numbers[0])]
    assert (await environment.step(call_of(question.code()))).reward == 0.0
    end = await environment.step(f"It is {question.answer:,}.")
    assert (end.done, end.reward) == (True, ANSWERED)
    assert end.metrics == {"win": 1.0, "called": 1.0, "computed": 1.0, "calls": 2.0}


async def test_programs_that_fail_are_shown_and_earn_nothing():
    environment, _ = begun(kinds=["sum"], calls=3)
    failed = await environment.step(call_of("1 / 0"))
    assert seen(failed).text.endswith("ZeroDivisionError: division by zero") and failed.reward == 0.0
    out = await environment.step(call_of("import os\nos.system('true')\nopen('/etc/passwd')"))
    assert "Error" in seen(out).text and "root:" not in seen(out).text and out.reward == 0.0
    several = Action("", [ToolCall("python", {"code": "7"}, "a"), ToolCall("python", {"code": 7}, "b")])
    ran = await environment.step(several)
    assert [result.is_error for result in seen(ran).tool_results] == [False, True]
    assert ran.reward == pytest.approx(CALLED)
    end = await environment.step(call_of("8"))
    assert (end.done, end.reward) == (True, 0.0)
    assert end.metrics == {"win": 0.0, "called": 1.0, "computed": 0.0, "calls": 4.0}
    environment, _ = begun()
    end = await environment.step("no number")
    assert (end.done, end.reward, end.metrics["calls"]) == (True, 0.0, 0.0)


async def test_a_sandbox_that_does_not_start_is_never_the_agents_doing(monkeypatch):
    environment, _ = begun()
    monkeypatch.setattr("earl.env.sandbox._PYTHON", ("/nowhere/python",))
    with pytest.raises(ServiceUnavailable, match="sandbox"):
        await environment.step(call_of("1"))


async def test_an_endless_program_is_stopped(monkeypatch):
    environment, _ = begun()
    monkeypatch.setattr(python_tool, "sandbox", lambda: Sandbox(SandboxLimits(wall_s=2.0)))
    stopped = await environment.step(call_of("print('on')\nwhile True: pass"))
    assert seen(stopped).text == "on\n[stopped: out of time]" and stopped.reward == 0.0


def test_questions_are_their_seeds():
    assert begun(5)[1] == begun(5)[1]
    small = {"kinds": ["product"], "digits": 1, "instruction": ""}
    training = {begun(seed, **small)[1].text for seed in range(300)}
    held_out = {begun(seed | EVALUATION_BIT, **small)[1].text for seed in range(100)}
    assert held_out and not training & held_out
    odd = begun(1, kinds=["median"], numbers=4)[0].question
    assert len(odd.numbers) == 5 and sorted(odd.numbers)[2] == odd.answer
    for bad in (
        {"kinds": ["cube"]},
        {"kinds": "sum"},
        {"numbers": 1},
        {"digits": 0},
        {"calls": 0},
        {"code": 1},
    ):
        with pytest.raises(ValueError, match=next(iter(bad))):
            begun(1, **bad)
