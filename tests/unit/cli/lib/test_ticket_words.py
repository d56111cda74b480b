"""One word for a state of a ticket wherever a person reads it, on the terminal, the page or in a trace."""

from __future__ import annotations

import io
import json
import re
from dataclasses import astuple, fields, replace

from rich.console import Console

from earl.cli.lib.status_text import ticket_figures
from earl.cli.lib.ticket_words import LIVE, ROLES, TICKETS
from earl.cli.report.bundle import bundled
from earl.cli.report.web_files import web_files
from earl.cli.run.live_view import LiveView
from earl.cli.run.plain_view import status_line
from earl.cli.show.status import rendered
from earl.cli.show.trace_events import COUNTERS
from earl.stack.status import LedgerStatus, RoleState
from tests.support.paths import ROOT
from tests.support.snapshots import SNAPSHOT, STATUS

# The names of two states in --json, metrics and the protocol.
NAMES = re.compile(r"\b(leased|planned|leases)\b", re.IGNORECASE)


def on_terminal() -> str:
    console = Console(file=io.StringIO(), width=200, height=200, record=True)
    console.print(rendered(SNAPSHOT))
    view = LiveView(console)
    view.update(SNAPSHOT.processes, STATUS)
    console.print(view._render())
    return f"{console.export_text()}\n{status_line(STATUS)}"


def test_the_table_has_every_state():
    counted = {field.name for field in fields(LedgerStatus)} - {"issued"}
    assert {state.name for state in TICKETS} == counted
    assert sum(getattr(STATUS.ledger, state.name) for state in LIVE) == STATUS.ledger.live
    assert [name for name, _, _ in ROLES] == [field.name for field in fields(RoleState)][1:]


def test_the_terminal_shows_the_words_and_never_the_names():
    text = on_terminal()
    assert not NAMES.search(text), NAMES.findall(text)
    # Without replay nothing is trained again.
    assert all((state.word in text) == (state.name != "replayed") for state in TICKETS)
    assert "16 in progress" in text
    again = replace(STATUS, ledger=replace(STATUS.ledger, replayed=32))
    assert ("trained again", "32") in [(word, count) for word, count, _ in ticket_figures(again.ledger)]
    assert "+ trained again 32 +" in status_line(again)


def test_the_page_takes_the_words_from_the_same_table():
    files = {name: content.decode() for name, content in web_files().items() if name != "uplot.js"}
    table = files.pop("words.js")
    assert json.dumps([astuple(state) for state in TICKETS]) in table and json.dumps(ROLES) in table
    for name, text in files.items():
        assert not NAMES.search(text), name
    assert 'from "./words.js"' in files["ledger.js"]
    modules = {name.removesuffix(".js"): text for name, text in files.items() if name.endswith(".js")}
    assert '"in a batch"' in bundled({**modules, "words": table}, "main")


def test_a_trace_counts_tickets_by_the_same_words():
    assert COUNTERS["tickets"] == {f"ledger.{state.name}": state.word for state in LIVE}


def test_the_documentation_has_the_names_only_as_names():
    pages = ("cli", "dashboard", "observability", "troubleshooting", "operating", "quickstart", "tutorial")
    for page in ("README.md", *(f"docs/{name}.md" for name in pages)):
        text = re.sub(r"```.*?```|`[^`]*`", "", (ROOT / page).read_text(), flags=re.DOTALL)
        assert not NAMES.search(text), (page, NAMES.findall(text))
