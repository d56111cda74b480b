"""The environments that a host serves: from classes, factories, or a run file's "package.module:object"."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from earl.env.adapters import EXTRAS
from earl.env.base import Environment, Factory
from earl.errors import ConfigError, DuplicateEnvironment


class ServedEnvironments(dict[str, Factory]):
    """Name → factory. target: the "package.module:object" that they were loaded from, or ""."""

    target = ""


NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")


def as_mapping(environments: Any) -> ServedEnvironments:
    """Name → factory, from a mapping, one Environment class, or an iterable of them.

    Raises DuplicateEnvironment if two have one name, ConfigError for a bad name or nothing at all.
    """
    pairs: list[tuple[Any, Any]]
    if isinstance(environments, Mapping):
        pairs = list(environments.items())
    else:
        classes = [environments] if isinstance(environments, type) else environments
        if not isinstance(classes, Iterable):
            raise ConfigError(
                f"{environments!r} serves no environments",
                "give an Environment class, a list of them, or a mapping of names to factories",
            )
        pairs = [(getattr(cls, "name", ""), cls) for cls in classes]
    served = ServedEnvironments()
    served.target = getattr(environments, "target", "")
    for name, factory in pairs:
        if not isinstance(name, str) or not NAME.match(name):
            raise ConfigError(
                f"environment name {name!r} of {factory!r} is not valid",
                "use letters, digits and . _ - /, for example mine/guess",
            )
        if name in served:
            raise DuplicateEnvironment(f"environment {name!r} is named twice", "rename one of them")
        if not callable(factory):
            raise ConfigError(f"factory of environment {name!r} cannot be called", "give a class or function")
        made: Any = factory
        served[name] = made
    if not served:
        raise ConfigError("no environment to serve", "give at least one")
    return served


def load(target: str) -> ServedEnvironments:
    """The environments at "package.module:object".

    The object is an Environment class, a mapping, an iterable of classes, or a function that returns
    one of these. Raises ConfigError if it cannot be imported or is none of them.
    """
    module_name, separator, attribute = target.partition(":")
    remedy = 'environment.serve is "package.module:Class or function"'
    if not separator or not module_name or not attribute:
        raise ConfigError(f"{target!r} does not name an object", remedy)
    try:
        target_object = getattr(importlib.import_module(module_name), attribute)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise ConfigError(f"{target!r} cannot be imported: {error}", remedy) from error
        needed = f"{target!r} needs package {package}, which is not installed"
        raise ConfigError(needed, f'pip install "earl[{EXTRAS[package]}]"') from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{target!r} cannot be imported: {error}", remedy) from error
    if not isinstance(target_object, type) and callable(target_object):
        target_object = target_object()
    served = as_mapping(target_object)
    served.target = target
    return served


def described(factory: Factory) -> type[Environment] | Environment:
    """Returns the holder of an environment's class attributes: the class, or one object of a factory."""
    return factory if isinstance(factory, type) else factory()
