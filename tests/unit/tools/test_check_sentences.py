"""Checks which sentences of a page are counted, and how many words each has."""

from __future__ import annotations

from tools.check_sentences import sentences

PAGE = """# A heading. It is none.

Two sentences stand
here. Is this the second? (This is the third.) e.g. this
belongs to vs. it

```
Code. Blocks.
```

| a table. | Too. |
|---|---|

- An item with `earl up FILE
  --json` and [the link's text](https://example.org/a.b?c).
- **Bold words end a sentence.** So does the item
1. It took <!--f demo; seconds;
.1f-->12.5<!--/f--> s, $a. b$ – see ![a picture. Of it.](a.png)
"""


def test_text_alone_is_split_into_sentences() -> None:
    assert [sentence.text for sentence in sentences(PAGE)] == [
        "Two sentences stand here.",
        "Is this the second?",
        "(This is the third.)",
        "e.g. this belongs to vs. it",
        "An item with code and the link's text.",
        "**Bold words end a sentence.**",
        "So does the item",
        "It took 12.5 s, formula – see",
    ]


def test_words_have_letters_or_digits() -> None:
    *_, last = sentences(PAGE)
    assert last.words == 6


def test_a_sentence_names_the_line_of_its_paragraph() -> None:
    assert [sentence.line for sentence in sentences(PAGE)][:5] == [3, 3, 3, 3, 14]
