"""Tool calls in texts: what is rendered is read back, everything else is one typed fault."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.env.tool_calls import (
    CLOSE,
    MAX_CALLS,
    MAX_CHARACTERS,
    OPEN,
    Fault,
    FaultKind,
    Tool,
    ToolCall,
    before_calls,
    calls_in,
    describe,
    has_calls,
    object_schema,
    parse,
    render,
    spoken,
)

CALCULATOR = Tool("calculator", "Evaluates arithmetic.", object_schema(expression="string"))
SEARCH = Tool("search", "Finds pages.", object_schema(query="string", most="integer", near="number"))
TOOLS = [CALCULATOR, SEARCH]

words_in_calls = st.text(max_size=12).filter(lambda text: OPEN not in text and CLOSE not in text)
calls = st.one_of(
    st.builds(lambda text: ToolCall("calculator", {"expression": text}), words_in_calls),
    st.builds(
        lambda text, most, near: ToolCall("search", {"query": text, "most": most, "near": near}),
        words_in_calls,
        st.integers(-(10**9), 10**9),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
)
between = st.text(max_size=20).filter(lambda text: "<" not in text)


@given(st.lists(calls, min_size=1, max_size=4), between)
def test_what_is_rendered_is_read_back(made, words):
    assert parse(words.join(["", *(render(call) for call in made), ""]), TOOLS) == made


@given(st.lists(calls, min_size=1, max_size=4))
def test_a_list_of_calls_is_read_as_one(made):
    body = json.dumps([{"name": call.name, "arguments": call.arguments} for call in made])
    assert parse(f"{OPEN}{body}{CLOSE}", TOOLS) == made


@given(st.text(max_size=200))
def test_every_text_has_an_answer(text):
    for action in (text, OPEN + text, OPEN + text + CLOSE):
        found = parse(action, TOOLS)
        assert isinstance(found, Fault) or all(isinstance(call, ToolCall) for call in found)
        if isinstance(found, Fault):
            assert found.message and "\n" not in found.message


def call(body: str) -> str:
    return f"{OPEN}{body}{CLOSE}"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", FaultKind.NO_CALL),
        ("12 * 7 is 84", FaultKind.NO_CALL),
        (CLOSE, FaultKind.NO_CALL),
        ("x" * (MAX_CHARACTERS + 1), FaultKind.TOO_LONG),
        (OPEN + '{"name": "calculator", "arguments": {"expression": "1"}}', FaultKind.UNCLOSED),
        (OPEN + render(ToolCall("calculator", {"expression": "1"})), FaultKind.UNCLOSED),
        (call(""), FaultKind.NOT_JSON),
        (call("{'name': 'calculator'}"), FaultKind.NOT_JSON),
        (call("[" * 5000), FaultKind.NOT_JSON),
        (call("9" * 5000), FaultKind.NOT_JSON),
        (call('{"name": "search", "arguments": {"query": "a", "most": 1, "near": NaN}}'), FaultKind.NOT_JSON),
        (call('{"name": "calculator", "name": "search", "arguments": {}}'), FaultKind.NOT_JSON),
        (call("7"), FaultKind.NOT_A_CALL),
        (call("[]"), FaultKind.NOT_A_CALL),
        (call('{"name": "calculator"}'), FaultKind.NOT_A_CALL),
        (call('{"name": "calculator", "arguments": {}, "id": 1}'), FaultKind.NOT_A_CALL),
        (call('{"name": "shell", "arguments": {}}'), FaultKind.UNKNOWN_TOOL),
        (call('{"name": 7, "arguments": {}}'), FaultKind.UNKNOWN_TOOL),
        (call('{"name": "calculator", "arguments": "1 + 1"}'), FaultKind.BAD_ARGUMENTS),
        (call('{"name": "calculator", "arguments": {"sum": "1"}}'), FaultKind.BAD_ARGUMENTS),
        (call('{"name": "calculator", "arguments": {"expression": 1}}'), FaultKind.BAD_ARGUMENTS),
        (
            call('{"name": "search", "arguments": {"query": "a", "most": true, "near": 1}}'),
            FaultKind.BAD_ARGUMENTS,
        ),
        (call('{"name": "search", "arguments": {"query": "a", "near": 1e999}}'), FaultKind.NOT_JSON),
        (render(ToolCall("calculator", {"expression": "1"})) * (MAX_CALLS + 1), FaultKind.TOO_MANY),
    ],
)
def test_faults(text, kind):
    found = parse(text, TOOLS)
    assert isinstance(found, Fault) and found.kind is kind, found


def test_the_description_shows_every_tool_and_a_form_that_names_the_marks():
    text = describe(TOOLS)
    schemas = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    assert [schema["function"]["name"] for schema in schemas] == ["calculator", "search"]
    assert schemas[1]["function"]["parameters"]["required"] == ["query", "most", "near"]
    assert OPEN in text and CLOSE in text


ADD, SUBTRACT = (ToolCall("calculator", {"expression": text}) for text in ("1 + 1", "2 - 1"))
THOUGHTS = {
    "closed": f"<think>perhaps {render(ADD)}</think>No, 2.",
    "never closed, as in a truncated answer": f"<think>perhaps {render(ADD)}",
    "begun in the prompt": f"perhaps {render(ADD)} or not</think>No, 2.",
    "twice": f"<think>a</think>b<think>{render(ADD)}</think>c",
    "one in another": f"<think>a<think>b</think>{render(ADD)}</think>c",
    "closed inside of an argument": "<think>" + render(ToolCall("calculator", {"expression": "</think>"})),
    "with a call that is not closed": f"<think>{OPEN}</think>2",
}


@pytest.mark.parametrize("text", THOUGHTS.values(), ids=[*THOUGHTS])
def test_a_call_that_is_only_thought_of_is_none(text):
    assert not has_calls(text)
    fault = calls_in(text)
    assert isinstance(fault, Fault) and fault.kind is FaultKind.NO_CALL and "<think>" in fault.message
    assert before_calls(text) == text


@pytest.mark.parametrize(
    ("text", "made"),
    [
        (f"<think>{render(ADD)}</think>{render(SUBTRACT)}", [SUBTRACT]),
        (f"{render(ADD)}</think>so {render(SUBTRACT)}", [SUBTRACT]),
        (f"{render(ADD)}<think>and then</think>{render(SUBTRACT)}", [ADD, SUBTRACT]),
        (f"{render(SUBTRACT)}<think>or {render(ADD)}", [SUBTRACT]),
        (f"<think>what is <think>?</think>{render(ADD)}", [ADD]),
    ],
)
def test_calls_beside_thinking_are_made(text, made):
    assert has_calls(text) and parse(text, TOOLS) == made


@pytest.mark.parametrize("mark", ["<think>", "</think>", "<think></think>"])
def test_marks_of_thinking_in_an_argument_are_data(mark):
    written = ToolCall("calculator", {"expression": f"a {mark} b"})
    assert parse(render(written) + render(ADD), TOOLS) == [written, ADD]


def test_an_unclosed_call_before_thinking_does_not_reach_into_it():
    fault = calls_in(f"{OPEN}<think>{render(ADD)}</think>")
    assert isinstance(fault, Fault) and fault.kind is FaultKind.UNCLOSED
    fault = calls_in(f"{OPEN}<think>{render(ADD)[len(OPEN) :]}</think>")
    assert isinstance(fault, Fault) and fault.kind is FaultKind.NO_CALL


def test_what_is_said_and_where_the_calls_begin():
    text = f"<think>{render(ADD)}</think>So {render(SUBTRACT)} is it."
    assert spoken(text) == f"So {render(SUBTRACT)} is it."
    assert before_calls(text) == f"<think>{render(ADD)}</think>So "
    assert spoken("as it is") == before_calls("as it is") == "as it is"


@given(st.lists(st.sampled_from(["<think>", "</think>", "words", render(ADD), OPEN, CLOSE])))
def test_thinking_never_calls(pieces):
    thought = "".join(piece for piece in pieces if piece != "</think>")
    assert not has_calls(f"<think>{thought}")
    assert not has_calls(f"<think>{thought}</think>said")
    if "<think>" not in pieces:
        assert not has_calls("".join([*pieces, "</think>"]))
