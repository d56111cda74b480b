"""Chance of an episode's own for packages that draw from `random` and `numpy.random` as a whole process does.

Such a package's episodes would mix: what one draws, or seeds, changes what another gets. In its modules
the names `random` and `numpy` are bound to the stand-ins below, which draw from the generator of the
episode that runs in this thread; nobody else's `random` is touched.

    load("textarena.envs.Nim.env", "textarena")
    with chance(generator):
        environment.step(action)
"""

from __future__ import annotations

import contextlib
import importlib
import random
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy

_lock = threading.Lock()


class _Current(threading.local):
    generator: random.Random | None = None


_current = _Current()


@contextlib.contextmanager
def chance(generator: random.Random) -> Iterator[None]:
    """Makes code inside the context, in this thread, draw from `generator`."""
    outer, _current.generator = _current.generator, generator
    try:
        yield
    finally:
        _current.generator = outer


def _generator() -> random.Random:
    if _current.generator is None:
        raise RuntimeError("a game drew chance outside of an episode")
    return _current.generator


class _Random:
    """Stands for the module `random`."""

    def Random(self, seed: Any = None) -> random.Random:
        return random.Random(_generator().getrandbits(64) if seed is None else seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(_generator(), name)


class _NumpyRandom:
    """Takes the place of `numpy.random` during an episode."""

    def default_rng(self, seed: Any = None) -> numpy.random.Generator:
        return numpy.random.default_rng(_generator().getrandbits(64) if seed is None else seed)

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy.random.RandomState(_generator().getrandbits(32)), name)


class _Numpy:
    """Stands for the module `numpy`."""

    random = _NumpyRandom()

    def __getattr__(self, name: str) -> Any:
        return getattr(numpy, name)


def _print_nothing(*values: Any, **options: Any) -> None:
    pass


_STAND_INS: dict[int, Any] = {id(random): _Random(), id(numpy): _Numpy()}


def load(module: str, package: str) -> ModuleType:
    """Imports `module`, and binds `random` and `numpy` in all of the package's modules to the stand-ins."""
    with _lock:
        loaded = importlib.import_module(module)
        for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
            space = vars(sys.modules[name])
            for key in [key for key, value in space.items() if id(value) in _STAND_INS]:
                space[key] = _STAND_INS[id(space[key])]
            # Progress and warnings on a host's standard output are read by nobody.
            space["print"] = _print_nothing
        return loaded
