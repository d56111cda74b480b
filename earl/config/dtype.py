"""The dtype keys of a run file: what they take, and what services may read.

"auto" is resolved once, when a run is launched (earl.stack.auto_dtype), and run.json has the result; a
service that reads a dtype through `settled` can not compute in another than the rest of the run does.
"""

from __future__ import annotations

from typing import Literal

from earl.errors import ConfigError

DType = Literal["float32", "bfloat16"]
DTypeOrAuto = Literal["float32", "bfloat16", "auto"]


def settled(key: str, dtype: DTypeOrAuto) -> DType:
    """The dtype. Raises ConfigError if it has not been resolved."""
    if dtype == "auto":
        raise ConfigError(
            f'{key} = "auto" has not been resolved: the launch of a run decides it and writes run.json',
            "start the service with the launched run's run.json, or with EARL_RUN_DIR where "
            '`python -m earl.stack.prepare` has been; or write "bfloat16" or "float32"',
        )
    return dtype
