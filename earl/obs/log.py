"""Structured logs: one JSON object a line on stderr, so that stdout stays for the ready line.

`setup` is called once by a process; modules use `logging.getLogger(__name__)` and give structure by
`extra={"fields": {...}}`. The level comes from EARL_LOG_LEVEL (default INFO).
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time


class JsonLines(logging.Formatter):
    """Formats a record as one line: time (UTC), level, process name, logger, message, fields."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": self._name,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line.update(fields)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def setup(name: str) -> None:
    """Sends this process's logs to stderr under `name`; an unknown EARL_LOG_LEVEL counts as INFO."""
    level = logging.getLevelNamesMapping().get(os.environ.get("EARL_LOG_LEVEL", "").upper(), logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines(name))
    logging.basicConfig(level=level, handlers=[handler], force=True)
