"""The base of all sections of a run file: strict, frozen, with units in the names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ConfigSection(BaseModel):
    """A table of the run file. Unknown keys are errors; values do not change once loaded."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
