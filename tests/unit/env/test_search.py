"""Search over local documents: what is found, in which order, how queries and results are bounded."""

import json
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.env.search import Document, SearchIndex, read_documents
from earl.errors import ConfigError

DOCUMENTS = [
    Document("a", "Ferries", "The ferry to Ustmark leaves at nine. Tickets are sold on board."),
    Document("b", "Ustmark", "A town of 4,000 on the western shore."),
    Document(
        "c", "Bread", "Rye bread keeps for a week. " + "It is baked in the morning. " * 40 + "Salt helps."
    ),
]
INDEX = SearchIndex(DOCUMENTS)


def ids(query, **bounds):
    return [hit.id for hit in INDEX.search(query, **bounds)]


def test_the_best_come_first():
    assert ids("Ustmark") == ["b", "a"]  # a title weighs more
    assert ids("When does the ferry leave?")[0] == "a"  # stems: leave, leaves
    assert ids("baking bread")[0] == "c"
    assert ids("ustmark bread", most=1) and len(ids("ustmark bread", most=2)) == 2
    scores = [hit.score for hit in INDEX.search("ferry to ustmark")]
    assert scores == sorted(scores, reverse=True) and len(scores) == 2


def test_what_is_shown_is_bounded_and_holds_the_match():
    (hit,) = INDEX.search("salt", characters=120)
    assert "Salt" in hit.text and len(hit.text) <= 120 < len(DOCUMENTS[2].text)
    (hit,) = INDEX.search("shore")
    assert hit.text == DOCUMENTS[1].text
    assert INDEX.text("c") == DOCUMENTS[2].text and INDEX.text("d") is None


@pytest.mark.parametrize("query", ["", "  ", "?!", "zebra", "ferry" * 5000])
def test_queries_that_find_nothing(query):
    assert ids(query) == []


@given(st.text(max_size=60))
@settings(max_examples=40)
def test_no_query_is_syntax(noise):
    query = f'{noise} OR NEAR("ferry" b) title: * ^" -bread AND'
    assert INDEX.search(query) == INDEX.search(" ".join(re.findall(r"\w+", query)))
    assert set(ids(query)) >= {"a", "c"}


def test_many_words_and_none_wanted():
    assert ids(" ".join(f"w{n}" for n in range(500)) + " ferry") == []  # past the words that count
    assert ids("ferry", most=0) == []


def test_equal_scores_are_ordered_by_id():
    same = [Document(name, "same", "the very same words") for name in "hgfedcba"]
    assert [hit.id for hit in SearchIndex(same).search("same words", most=8)] == list("abcdefgh")


def test_threads_share_an_index():
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(ids("Ustmark"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [["b", "a"]] * 4


def test_an_index_on_disk(tmp_path):
    path = tmp_path / "an index?.db"
    made = SearchIndex(DOCUMENTS, path)
    made.close()
    opened = SearchIndex(path=path)
    assert len(opened) == 3 and opened.search("ferry") == INDEX.search("ferry")
    opened.close()
    for bad in (
        lambda: SearchIndex(DOCUMENTS, path),
        lambda: SearchIndex(path=tmp_path / "none"),
        SearchIndex,
    ):
        with pytest.raises(ConfigError):
            bad()
    (tmp_path / "other").write_text("no database at all, " * 100)
    with pytest.raises(ConfigError, match="no search index"):
        SearchIndex(path=tmp_path / "other")
    with pytest.raises(ConfigError, match="'a'"):
        SearchIndex([DOCUMENTS[0], DOCUMENTS[0]])


def test_a_folder_of_documents(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "x.md").write_text("# Not this")
    (tmp_path / "sub" / "page.md").write_text("intro\n## Second level \n# First\ntext")
    (tmp_path / "note.txt").write_text("# no heading in a text")
    (tmp_path / "image.png").write_bytes(b"\x89PNG")
    rows = [{"text": "one"}, {"text": "two", "id": "second", "title": "Two"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    found = {document.id: document for document in read_documents(tmp_path)}
    assert set(found) == {"note.txt", "rows.jsonl:1", "second", "sub/page.md"}
    assert found["sub/page.md"].title == "Second level" and found["note.txt"].title == "note"
    assert (
        found["second"] == Document("second", "Two", "two") and found["rows.jsonl:1"].title == "rows.jsonl:1"
    )
    assert len(SearchIndex(read_documents(tmp_path))) == 4


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"text": 1}', '{"text": "a", "id": 5}', "[" * 5000])
def test_lines_that_are_no_documents(tmp_path, line):
    (tmp_path / "rows.jsonl").write_text('{"text": "fine"}\n' + line)
    with pytest.raises(ConfigError, match="line 2"):
        list(read_documents(tmp_path))


def test_folders_that_cannot_be_read(tmp_path):
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="no documents"):
            list(read_documents(folder))
    (tmp_path / "latin.txt").write_bytes("größe".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        list(read_documents(tmp_path))
