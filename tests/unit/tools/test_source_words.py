"""The rule for words finds names and docstrings that need a second reading, and passes plain ones."""

from __future__ import annotations

import ast

import pytest

from tools.source_words import class_findings, comment_findings, findings_in_tests, word_findings


def findings(source: str) -> list[str]:
    return [what for _, what, _ in word_findings(ast.parse(source), "earl/x.py")]


@pytest.mark.parametrize(
    "source",
    [
        "one = 1",
        "for found in (): ...",
        "def f(why): ...",
        "class A:\n    def at(self): ...",
        "self.own = 3",
        "trainer_cut = 1",
        "class TrainerCut: ...",
        "match x:\n    case [*seen]: ...",
        'def f():\n    """Of one run."""',
        'def f():\n    """These files of a run."""',
        '"""From now on, everywhere."""',
        'def f():\n    """Whether a host is there."""',
        '"""What a run writes, and where."""',
        'option(help="Of this version.")',
        "own_port = 1",
        "class Seen: ...",
        "heard_at = 0.0",
        "async def _shown(): ...",
    ],
)
def test_a_word_that_says_nothing_is_found(source: str) -> None:
    assert len(findings(source)) == 1


def test_a_comment_that_begins_with_of_is_found() -> None:
    ((line, _, _),) = comment_findings("x = 1\n    # Of one run.\n# One of many.\n")
    assert line == 2


def test_plain_names_pass() -> None:
    assert findings('"""Writes a file."""\nshortcut, ticket = 1, 2\nx.one()\nprint(found)') == []
    assert findings("class A:\n    def shown(self): ...\ndef shown_text(): ...") == []


def test_texts_that_name_their_subject_pass() -> None:
    assert findings('"""Format a run."""\nf("Off", "Of", "Share of it.")\nlast_seen = silent_s = 1') == []


def test_a_member_is_a_worker_in_the_scheduler_alone() -> None:
    tree = ast.parse("def f(member): ...")
    ((_, what, _),) = word_findings(tree, "services/scheduler/parallelism/driver.py")
    assert what == "member in the name member"
    assert not list(word_findings(tree, "services/scheduler/ledger/transcripts.py"))


def test_a_class_name_in_two_modules_is_found() -> None:
    modules = [(path, ast.parse(source)) for path, source in (
        ("a.py", "class Plan: ..."), ("b.py", "class Plan: ..."), ("c.py", "class _Plan: ..."),
    )]  # fmt: skip
    ((path, (_, what, _)),) = class_findings(modules)
    assert path == "a.py" and what == "class Plan also in b.py"


def test_a_file_name_that_says_nothing_is_found() -> None:
    ((_, what, _),) = word_findings(ast.parse(""), "earl/env/adapters/said.py")
    assert what == "said in the file's name"
    assert not list(word_findings(ast.parse(""), "earl/env/adapters/move_text.py"))


def test_tests_are_free_of_metaphors_and_fragments_alone() -> None:
    source = 'def test_a_cut():\n    """Of one run."""\none = found = 1\nclass Looks: ...'
    assert len(list(findings_in_tests(ast.parse(source)))) == 2
