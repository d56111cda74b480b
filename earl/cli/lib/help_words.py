"""The values of options and arguments in the help, in words instead of Python's types.

--last <int range>   becomes   --last N
--json <bool>        becomes   --json
[[RUN]] <path>       becomes   [RUN]
"""

from __future__ import annotations

from typing import Any

# What stands for a value of a type; a flag has none. Choices are their own words.
WORDS = {
    "bool": "",
    "int": "N",
    "int range": "N",
    "float": "NUMBER",
    "float range": "NUMBER",
    "str": "TEXT",
    "path": "PATH",
    "file": "FILE",
    "directory": "DIRECTORY",
}


def worded(parameter: Any, ctx: Any) -> Any:
    """The parameter of a command, whose help and usage show a word for its value.

    That is its metavar; one without gets a word for its type.
    """
    label = parameter.display_type(ctx).strip("<>")
    label = label.removeprefix("list[").removesuffix("]") if label.startswith("list[") else label
    if parameter.param_type_name == "option":
        if parameter.metavar is None:
            parameter.metavar = WORDS.get(label, label)
        return parameter
    if parameter.metavar is None:
        name = parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
        parameter.metavar = name if parameter.required else f"[{name}]"
    # typer puts its own brackets around the name, and the type behind it.
    parameter.get_usage_pieces = lambda ctx: [parameter.metavar]
    parameter.display_type_rich = lambda ctx: None
    return parameter


def word_parameters(command: Any) -> None:
    """Makes the help of a command, and of those below it, show words; --help itself is a parameter too."""
    parameters_of = command.get_params
    command.get_params = lambda ctx: [worded(parameter, ctx) for parameter in parameters_of(ctx)]
    for below in getattr(command, "commands", {}).values():
        word_parameters(below)
