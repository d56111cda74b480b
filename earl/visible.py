"""Makes text of models and environments safe to show: a terminal's control characters are made visible."""

from __future__ import annotations

# All control characters but line ends and tabs; those of Latin-1 (one is ESC and [ at once) have no picture.
_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_PICTURES |= dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def visible(text: str) -> str:
    """The text with a visible picture in place of each control character."""
    return text.translate(_PICTURES)
