"""Looks up a fragment by the name that a run file gives it: EARL's own, or "package.module:function"."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar, cast

from earl.errors import ConfigError

Fragment = TypeVar("Fragment", bound=Callable[..., Any])


def names_function(name: str) -> bool:
    """Returns whether a name has the form "package.module:function"."""
    module, separator, function = name.partition(":")
    return bool(separator and function.isidentifier() and all(map(str.isidentifier, module.split("."))))


def check_name(key: str, name: str, known: Collection[str]) -> None:
    """Raises ConfigError for a key's value that is neither in `known` nor of a function's form.

    Nothing is imported: whoever reads a run file runs no code of its author.
    """
    if name not in known and not names_function(name):
        raise ConfigError(
            f"{key} = {name!r} names no fragment",
            f'give one of {", ".join(known)}, or a function of yours as "package.module:function"',
        )


def load_fragment(key: str, name: str, known: Mapping[str, Fragment]) -> Fragment:
    """The fragment of that name. A user's module is imported. Raises ConfigError."""
    check_name(key, name, known)
    if name in known:
        return known[name]
    module, _, function = name.partition(":")
    remedy = "install the package where the run's services are, or put its directory into PYTHONPATH"
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{key} = {name!r} cannot be imported: {error}", remedy) from error
    except Exception as error:
        text = f"{key} = {name!r} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(text, "correct the module") from error
    fragment: Any = getattr(imported, function, None)
    if fragment is None:
        raise ConfigError(f"{key} = {name!r}: {module} has no {function}", "name a function of the module")
    if not callable(fragment):
        raise ConfigError(f"{key} = {name!r} cannot be called", "name a function of the module")
    return cast("Fragment", fragment)
