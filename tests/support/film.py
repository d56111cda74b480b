"""Animated SVGs of a terminal, read as a viewer would who has nothing else."""

from __future__ import annotations

import re
from xml.etree import ElementTree

SVG = "{http://www.w3.org/2000/svg}"


def needs_nothing(svg: str) -> None:
    """The film is well-formed, and asks nobody for anything; without motion it stands still; it shows no
    paths.
    """
    tree = ElementTree.fromstring(svg)
    assert tree.tag == f"{SVG}svg"
    kinds = {element.tag.removeprefix(SVG) for element in tree.iter()}
    assert kinds <= {"svg", "title", "style", "rect", "g", "path", "text", "tspan"}
    names = {name for element in tree.iter() for name in element.attrib}
    assert not any(name.startswith("on") or name.endswith("href") for name in names)
    assert re.findall(r"https?://[\w.]+", without_texts(svg)) == ["http://www.w3.org"]
    assert "@import" not in svg and "url(" not in svg and "@font-face" not in svg
    assert re.search(r"@media\(prefers-reduced-motion:reduce\)\{[^}]*animation:none!important", svg)
    texts = " ".join("".join(element.itertext()) for element in tree.iter(f"{SVG}text"))
    assert not re.search(r"/(home|root|tmp|Users|mnt|var)/", texts)


def without_texts(svg: str) -> str:
    """The markup alone: an address that a command said is no link."""
    return re.sub(r">[^<]+</tspan>", "></tspan>", svg)


def animated(svg: str) -> int:
    """Counts the parts that move; each has its keyframes, in their order."""
    names = re.findall(r"@keyframes (\w+)\{0\.00%", svg)
    for name in names:
        stops = re.search(rf"@keyframes {name}\{{(.*?\}})\}}", svg)
        assert stops is not None and f"animation-name:{name};" in svg
        percents = [float(one) for one in re.findall(r"([\d.]+)%", stops[1])]
        assert percents == sorted(percents) and percents[-1] < 100
    return len(names)


def still(svg: str) -> list[str]:
    """The rows that are shown without animation, the caption last."""
    tree = ElementTree.fromstring(svg)
    places = dict(re.findall(r"svg \.(\w+)\{[^}]*transform:translate\([^,]+,(-?\d+)px\)", svg))
    shown: dict[float, str] = {}
    for window in tree.iter(f"{SVG}svg"):
        if window is tree:
            continue
        top, height = float(window.attrib["y"]), float(window.attrib["height"])
        moved = window.find(f"{SVG}g")
        assert moved is not None
        offset = float(places.get(moved.attrib.get("class", ""), 0))
        for text in moved.iter(f"{SVG}text"):
            if 0 <= float(text.attrib["y"]) + offset < height:
                shown[top] = " ".join(word.text or "" for word in text.iter(f"{SVG}tspan"))
    last = tree.find(f"{SVG}g/{SVG}g")
    assert last is not None
    return [shown[top] for top in sorted(shown)] + ["".join(last.itertext())]
