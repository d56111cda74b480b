"""Classes of tensors: those of one dtype and layout whose names differ only in numbers. Pure.

    model.layers.{}.mlp.experts.{}.up_proj.weight   stack (61, 256), shape (2048, 7168), one mesh

A class is described, published and planned once, however many tensors it has; a name finds its class by
its digits. What an owner holds of a class lies tensor after tensor, `tensor_bytes` from one to the next.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from earl.dispatch.describe.dtypes import numpy_dtype
from earl.dispatch.describe.regions import RegionRef
from earl.dispatch.layout.mesh import MeshLayout
from earl.dispatch.layout.placements import Placement, Runs
from earl.errors import LayoutError

_DIGITS = re.compile(r"\d+")
_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, slots=True)
class TensorClass:
    """template: a name with {} for each of the layout's `stack` dimensions. dtype: by name.

    Example: TensorClass("h.{}.w", "float32", MeshLayout((3, 8, 6), (2,), (("shard", 1),), ("a", "b"), 1)).
    """

    template: str
    dtype: str
    layout: MeshLayout

    def __post_init__(self) -> None:
        literal = self.template.replace("{}", "")
        if self.template.count("{}") != self.layout.stack or "{" in literal or "}" in literal:
            raise LayoutError(
                f"{self.template!r} for {self.layout.stack} numbers", "write {} for each and no other braces"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one tensor of the class."""
        return self.layout.shape[self.layout.stack :]

    def names(self) -> Iterator[str]:
        """The names of all tensors of the class, row-major over their numbers."""
        for numbers in product(*map(range, self.layout.shape[: self.layout.stack])):
            yield self.template.format(*numbers)

    def extent(self, rank: int) -> tuple[int, int]:
        """(number of tensors of which owner `rank` holds a part, bytes of each part)."""
        runs = self.layout.runs(rank)
        count = prod(map(length, runs[: self.layout.stack]))
        size_bytes = prod(map(length, runs[self.layout.stack :])) * numpy_dtype(self.dtype).itemsize
        return (count, size_bytes) if size_bytes else (0, 0)

    def held(self, rank: int) -> tuple[list[str], tuple[int, ...]]:
        """(names of the tensors of which owner `rank` holds a part, in the order in which they lie; the shape
        of each part). No names where the part is empty.
        """
        runs = self.layout.runs(rank)
        stack = self.layout.stack
        shape = tuple(length(ranges) for ranges in runs[stack:])
        if not all(shape):
            return [], shape
        numbers = product(*([i for a, b in ranges for i in range(a, b)] for ranges in runs[:stack]))
        return [self.template.format(*some) for some in numbers], shape


def length(runs: Runs) -> int:
    """Number of indices in these ranges."""
    return sum(stop - start for start, stop in runs)


def spaced(size_bytes: int) -> int:
    """Bytes from the beginning of an owner's part of one tensor to that of the next."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def held_bytes(classes: Iterable[tuple[TensorClass, int]]) -> int:
    """Bytes of a region for what an owner holds of these classes, each with the owner's rank on its mesh."""
    extents = (tensor_class.extent(rank) for tensor_class, rank in classes)
    return sum(count * spaced(part_bytes) for count, part_bytes in extents)


@dataclass(frozen=True, slots=True)
class ClassShard:
    """One owner's part of a class, as in its descriptor. rank: its row-major position on the mesh.

    offset_bytes: where its first tensor begins in the region; tensor_bytes: from each tensor to the next.
    The layout's owners are named by their ranks.
    """

    tensors: TensorClass
    rank: int
    region: RegionRef
    offset_bytes: int
    tensor_bytes: int


def classes_of(tensors: Mapping[str, tuple[str, MeshLayout]]) -> list[TensorClass]:
    """Tensors by name, each (dtype's name, layout of it alone), as the fewest classes, in order."""
    groups: dict[tuple[str, str, MeshLayout], list[str]] = {}
    for name, (dtype, layout) in tensors.items():
        if "{" in name or "}" in name:
            raise LayoutError(f"tensor {name!r}", "give it a name without braces")
        groups.setdefault((_DIGITS.sub("{}", name), dtype, layout), []).append(name)
    return [
        made for (_, dtype, layout), names in groups.items() for made in _of_one_form(names, dtype, layout)
    ]


def _of_one_form(names: list[str], dtype: str, layout: MeshLayout) -> Iterator[TensorClass]:
    """One class if in each place the numbers are 0 to n, or always the same; else a class for each name."""
    numbers = [tuple(_DIGITS.findall(name)) for name in names]
    template = names[0]
    sizes: list[int] = []
    for place, match in reversed(list(enumerate(_DIGITS.finditer(names[0])))):
        values = {some[place] for some in numbers}
        if len(values) == 1:
            continue
        if values != {str(i) for i in range(len(values))}:
            sizes = []
            break
        sizes.insert(0, len(values))
        template = template[: match.start()] + "{}" + template[match.end() :]
    if not sizes or prod(sizes) != len(names):
        yield from (TensorClass(name, dtype, layout) for name in names)
        return
    placements = tuple(_moved(placement, len(sizes)) for placement in layout.placements)
    stacked = replace(layout, shape=(*sizes, *layout.shape), placements=placements, stack=len(sizes))
    yield TensorClass(template, dtype, stacked)


def _moved(placement: Placement, by: int) -> Placement:
    """The same placement for a tensor with `by` more dimensions in front."""
    match placement:
        case (kind, int(dim)):
            return kind, dim + by
        case (kind, int(dim), int(split)):
            return kind, dim + by, split
        case _:
            return placement


class ClassIndex:
    """Finds the class of a tensor by its name, and its number in the class."""

    def __init__(self, classes: Collection[TensorClass]) -> None:
        single = [tensor_class for tensor_class in classes if not tensor_class.layout.stack]
        self._single = {tensor_class.template: tensor_class for tensor_class in single}
        self._by_form: dict[str, list[tuple[re.Pattern[str], TensorClass]]] = {}
        for tensor_class in classes:
            if not tensor_class.layout.stack:
                continue
            pattern = "".join(
                r"(\d+)" if part == "{}" else re.escape(part)
                for part in re.split(r"(\{\})", tensor_class.template)
            )
            form = _DIGITS.sub("{}", tensor_class.template)
            self._by_form.setdefault(form, []).append((re.compile(pattern), tensor_class))

    def find(self, name: str) -> tuple[TensorClass, int] | None:
        """(class, number row-major over its stack), or None."""
        single = self._single.get(name)
        if single is not None:
            return single, 0
        for pattern, tensor_class in self._by_form.get(_DIGITS.sub("{}", name), ()):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            number = 0
            sizes = tensor_class.layout.shape[: tensor_class.layout.stack]
            numbers = [int(text) for text in match.groups()]
            # A number written with zeros in front is another name.
            if tensor_class.template.format(*numbers) != name:
                continue
            if any(i >= n for i, n in zip(numbers, sizes, strict=True)):
                continue
            for i, n in zip(numbers, sizes, strict=True):
                number = number * n + i
            return tensor_class, number
        return None
