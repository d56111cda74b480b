"""Values of options and arguments that are text, paths or left out, taken as they are.

typer converts every value with pydantic, which takes longer to import than the rest of `earl ls`. It still
does so where there is something to convert or to refuse.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def take_plain_values(command: Any) -> None:
    """Makes the parameters of a command, and of those below it, so; --help itself is one of them."""
    parameters_of = command.get_params
    command.get_params = lambda ctx: [taking_plain_values(parameter) for parameter in parameters_of(ctx)]
    for below in getattr(command, "commands", {}).values():
        take_plain_values(below)


def taking_plain_values(parameter: Any) -> Any:
    """The parameter of a command, which takes a value that needs no conversion without typer's."""
    single = parameter.nargs == 1 and not getattr(parameter, "multiple", False)
    if single and not isinstance(parameter.process_value, PlainValue):
        parameter.process_value = PlainValue(parameter)
    return parameter


class PlainValue:
    """Stands for the `process_value` of a parameter that has one value."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._convert = parameter.process_value

    def __call__(self, ctx: Any, value: Any) -> Any:
        parameter = self._parameter
        if value is None and not parameter.required:
            return parameter.callback(ctx, parameter, None) if parameter.callback is not None else None
        kind, settings = parameter.type_descriptor.annotation, parameter.type_descriptor.parameter_info
        if isinstance(value, str) and settings.parser is None and parameter.callback is None:
            if kind is str:
                return value
            if kind is Path and _unchecked(settings) and _is_readable(value):
                return Path(value)
        return self._convert(ctx, value)


def _unchecked(settings: Any) -> bool:
    """Returns whether any path will do, as long as what is there can be read."""
    other_checks = (settings.exists, settings.writable, settings.resolve_path, settings.allow_dash)
    anything = settings.file_okay and settings.dir_okay and settings.readable
    return anything and settings.path_type is None and not any(other_checks)


def _is_readable(path: str) -> bool:
    return not os.path.exists(path) or os.access(path, os.R_OK)
