"""Reads a chart's SVG: its texts with the space that they take, its marks, and what overlaps."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

SVG = "{http://www.w3.org/2000/svg}"
# Ascent and descent of letters, as shares of the size.
ASCENT, DESCENT = 0.76, 0.24


@dataclass(frozen=True, slots=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float
    text: str = ""

    def overlaps(self, other: Box) -> bool:
        across = min(self.right, other.right) - max(self.left, other.left)
        return across > 0 and min(self.bottom, other.bottom) - max(self.top, other.top) > 0

    def within(self, other: Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True, slots=True)
class Drawing:
    """A parsed picture."""

    root: ElementTree.Element

    @classmethod
    def parsed(cls, svg: str) -> Drawing:
        return cls(ElementTree.fromstring(svg))

    @property
    def frame(self) -> Box:
        return Box(0, 0, float(self.root.attrib["width"]), float(self.root.attrib["height"]))

    @property
    def texts(self) -> list[Box]:
        return [self._box(text) for text in self.root.iter(f"{SVG}text")]

    @property
    def smallest_text(self) -> float:
        default = self.root.attrib["font-size"]
        return min(float(text.get("font-size", default)) for text in self.root.iter(f"{SVG}text"))

    @property
    def words(self) -> list[str]:
        return [text.text or "" for text in self.root.iter(f"{SVG}text")]

    def marks(self, tag: str) -> dict[str, ElementTree.Element]:
        """The marks of a kind by their titles."""
        titled = ((mark.find(f"{SVG}title"), mark) for mark in self.root.iter(f"{SVG}{tag}"))
        return {title.text or "": mark for title, mark in titled if title is not None}

    def points(self) -> Iterator[tuple[float, float]]:
        """Positions of all dots, corners of bars and ends of lines."""
        for mark in self.root.iter():
            value = {name: float(text) for name, text in mark.attrib.items() if name in POSITIONS}
            if mark.tag == f"{SVG}circle":
                yield value["cx"], value["cy"]
            elif mark.tag == f"{SVG}line":
                yield from ((value["x1"], value["y1"]), (value["x2"], value["y2"]))
            elif mark.tag == f"{SVG}rect" and "x" in value:
                yield value["x"], value["y"]
                yield value["x"] + value["width"], value["y"] + value["height"]
            elif mark.tag == f"{SVG}polyline":
                yield from points_of(mark)

    def collisions(self) -> list[tuple[str, str]]:
        """Texts that overlap each other."""
        pairs = itertools.combinations(self.texts, 2)
        return [(first.text, second.text) for first, second in pairs if first.overlaps(second)]

    def _box(self, text: ElementTree.Element) -> Box:
        size = float(text.get("font-size", self.root.attrib["font-size"]))
        words = text.text or ""
        width = width_of(words, text.get("font-weight", "normal")) * size
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
        return Box(left, y - ASCENT * size, left + width, y + DESCENT * size, words)


POSITIONS = ("x", "y", "width", "height", "cx", "cy", "x1", "y1", "x2", "y2")


def points_of(line: ElementTree.Element) -> list[tuple[float, float]]:
    """The points of a polyline."""
    pairs = (pair.split(",") for pair in line.attrib["points"].split())
    return [(float(x), float(y)) for x, y in pairs]


@cache
def width_of(words: str, weight: str) -> float:
    """The width of a line of text over its size, in DejaVu Sans: no usual font is wider."""
    font = FontProperties(family="DejaVu Sans", weight=weight)
    return float(TextPath((0, 0), words, size=100, prop=font).get_extents().x1) / 100
