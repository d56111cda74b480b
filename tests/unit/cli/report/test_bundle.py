"""The bundler: modules in the order of their imports, and no form that it does not understand."""

from __future__ import annotations

import pytest

from earl.cli.report.bundle import bundled
from earl.errors import ConfigError


def test_modules_stand_before_those_that_import_them_each_once():
    script = bundled(
        {
            "main": 'import { a } from "./x.js";\nimport { b, c } from "./y.js";\na(b, c);',
            "x": '// First.\n\nimport { b } from "./y.js";\nexport function a() { return b; }',
            "y": "export const b = 1;\nexport class c {}\nconst own = 2;",
            "unused": "export const d = 1;",
        },
        "main",
    )
    assert [line for line in script.splitlines() if line.startswith("const $")] == [
        "const $y = (() => {", "const $x = (() => {", "const $main = (() => {",
    ]  # fmt: skip
    assert "const { b, c } = $y;" in script and "return { b, c };" in script
    assert "export" not in script and "import" not in script and "unused" not in script


@pytest.mark.parametrize(
    "line",
    [
        'import x from "./x.js";', 'import * as x from "./x.js";', 'import { a as b } from "./x.js";',
        'import "./x.js";', 'import { a } from "./x.js"', 'import { a } from "elsewhere";',
        "import {", "export default 1;", "export { a };", "export let a = 1;", "export * from './x.js';",
        '  import { a } from "./x.js";', 'const x = import("./x.js");', "const here = import.meta.url;",
        "await ready();", "const x = await ready();",
        'const x = 1;\nimport { a } from "./x.js";',
    ],
)  # fmt: skip
def test_other_forms_are_refused(line: str):
    with pytest.raises(ConfigError, match=r"main\.js:\d is not understood"):
        bundled({"main": line, "x": "export const a = 1;"}, "main")


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"main\.js imports x\.js, which is missing"):
        bundled({"main": 'import { a } from "./x.js";'}, "main")
    with pytest.raises(ConfigError, match=r"main\.js:1: x\.js has no b"):
        bundled({"main": 'import { a, b } from "./x.js";', "x": "export const a = 1;"}, "main")
    with pytest.raises(ConfigError, match=r"x\.js imports itself: x > y"):
        bundled({"x": 'import { a } from "./y.js";', "y": 'import { b } from "./x.js";'}, "x")
