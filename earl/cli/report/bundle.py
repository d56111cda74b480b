"""The page's JavaScript modules as one script, for a file that can import nothing. Pure.

    const $text = (() => { … return { count, number }; })();
    const $tip = (() => { const { count } = $text; … })();

Each module becomes a function that returns what it exports, after those that it imports. Only the forms
that the page uses are understood; any other is refused, so that nothing is left out in silence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from earl.errors import ConfigError

IMPORT = re.compile(r'import \{ (\w+(?:, \w+)*) \} from "\./(\w+)\.js";')
EXPORT = re.compile(r"export ((?:async )?function\*?|class|const) (\w+)\b")
# Import and export in other places, and in forms that are not single lines.
OTHER_FORM = re.compile(
    r"^\s+(?:import|export)\b|\bimport\s*[(.]|^await\b|^(?:const|let|var)\b.*[=(]\s*await\b"
)
REMEDY = 'write import { a, b } from "./x.js"; and export function, class or const, each on a line'


def bundled(modules: Mapping[str, str], entry: str) -> str:
    """One script with the entry and all that it imports. modules: text by name, without ".js".

    Raises ConfigError for a module that is missing, imports itself, or is written in another form.
    """
    exports: dict[str, list[str]] = {}
    parts: list[str] = []

    def add(name: str, importers: tuple[str, ...]) -> None:
        if name in exports:
            return
        if name in importers:
            raise ConfigError(f"{name}.js imports itself: {' > '.join(importers)}", "part the modules")
        if name not in modules:
            raise ConfigError(f"{importers[-1]}.js imports {name}.js, which is missing", REMEDY)
        lines, offered = [], []
        begun = False
        for number, line in enumerate(modules[name].splitlines(), 1):
            imported, exported = IMPORT.fullmatch(line), EXPORT.match(line)
            if imported is not None and not begun:
                names, source = imported.groups()
                add(source, (*importers, name))
                absent = set(names.split(", ")) - set(exports[source])
                if absent:
                    raise ConfigError(f"{name}.js:{number}: {source}.js has no {min(absent)}", REMEDY)
                lines.append(f"const {{ {names} }} = ${source};")
            elif exported is not None:
                offered.append(exported.group(2))
                lines.append(line.removeprefix("export "))
            elif line.startswith(("import", "export")) or OTHER_FORM.search(line):
                raise ConfigError(f"{name}.js:{number} is not understood: {line.strip()[:60]}", REMEDY)
            else:
                lines.append(line)
            begun = begun or not (imported or line.startswith("//") or not line.strip())
        exports[name] = offered
        body = "\n".join(lines)
        parts.append(f"const ${name} = (() => {{\n{body}\nreturn {{ {', '.join(offered)} }};\n}})();\n")

    add(entry, ())
    return "".join(parts)
