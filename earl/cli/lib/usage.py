"""Errors of a command line, in the words of EARL's other errors."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

from earl.errors import ConfigError

# What a command line that cannot be understood raises; its class and those derived are not exported by typer.
UsageError: Any = typer.BadParameter.__mro__[1]


def wants_help(error: Any) -> bool:
    """Returns whether nothing was typed after a group of commands, which shows its help."""
    return _kind(error) == "NoArgsIsHelpError"


def is_unknown_option(error: Any) -> bool:
    return _kind(error) == "NoSuchOption"


def usage_error(error: Any, arguments: Sequence[str] = ()) -> ConfigError:
    """The error of a command line: the value, what is wrong with it, and what to do.

    arguments: the command line, to find the value of an option; else the process's own.
    """
    command = error.ctx.command_path if error.ctx is not None else "earl"
    see = f"see {command} --help"
    text = " ".join(error.format_message().split()).rstrip(".")
    if _kind(error) == "MissingParameter" and (match := re.search(r"'\{?([^'{}]+)\}?'", text)):
        return ConfigError(f"{command} needs {match[1]}", see)
    if is_unknown_option(error):
        near = sorted(error.possibilities or ())
        return ConfigError(
            f"there is no option {error.option_name}", f"did you mean {' or '.join(near)}?" if near else see
        )
    if match := re.match(r"No such command '(.*?)'(?:.*'(.*)')?", text):
        remedy = f"did you mean {match[2]}?" if match[2] else f"see {command} --help for those there are"
        return ConfigError(f"there is no command {command} {match[1]}", remedy)
    if match := re.match(r"Got unexpected extra argument.*?\(([^()]*)\)$", text):
        return ConfigError(f"{command} takes no argument {match[1]!r}", see)
    if match := re.match(r"Invalid value for '([^']+?)(?:' / .*)?': (.*)", text):
        option = match[1]
        value = _value(option, error.param, arguments or sys.argv[1:])
        return ConfigError(f"{option}{value} is wrong", _remedy(match[2], see))
    if match := re.match(r"Option '(.*?)' requires", text):
        return ConfigError(f"{match[1]} has no value", f"write {match[1]} VALUE")
    return ConfigError(text[:1].lower() + text[1:], see)


def _kind(error: Any) -> str:
    return type(error).__name__


def _value(option: str, parameter: Any, arguments: Sequence[str]) -> str:
    """Returns the value typed for an option, after a space; "" if there is none."""
    names = {option, *getattr(parameter, "opts", ())}
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in names:
            return f" {value if equals else following}".rstrip()
    return ""


def _remedy(reason: str, default: str) -> str:
    """Derives a remedy from pydantic's message about a value."""
    if "valid integer" in reason:
        return "give a whole number"
    if "valid number" in reason:
        return "give a number"
    if bound := re.search(r"(greater|less) than( or equal to)? (\S+)$", reason):
        words = {
            ("greater", True): "at least",
            ("less", True): "at most",
            ("greater", False): "more than",
            ("less", False): "less than",
        }
        return f"give {words[bound[1], bool(bound[2])]} {bound[3]}"
    return default
