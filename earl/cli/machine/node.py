"""The use of a machine's devices by a run, as a table and as findings: `earl doctor --devices`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from earl.cli.machine.findings import Finding
from earl.config.devices import MOST_DEVICES, shown_devices
from earl.errors import ConfigError

GIB = 1 << 30
_UNITS = {"GiB": 1 << 30, "GB": 10**9, "MiB": 1 << 20, "TiB": 1 << 40}
_DEVICES = re.compile(r"(\d{1,4})\s*x\s*(\d{1,6}(?:\.\d+)?)\s*(GiB|GB|MiB|TiB)")


def devices_of(text: str) -> tuple[int, int]:
    """(GPUs, bytes of each) of "8x80GiB". Raises ConfigError."""
    match = _DEVICES.fullmatch(text.strip())
    if match is None or not 1 <= int(match[1]) <= MOST_DEVICES or not float(match[2]):
        raise ConfigError(
            f"--devices {text!r} names no devices", "give how many of which memory, such as 8x80GiB"
        )
    return int(match[1]), int(float(match[2]) * _UNITS[match[3]])


def of_node(probed: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks if the devices hold the run: a finding for each group of devices that do not."""
    facts, error = probed["facts"], probed["error"]
    if error is not None:
        yield Finding("devices", False, True, error["message"], error["remedy"], facts)
        return
    if not facts["faults"]:
        yield Finding("devices", True, True, fitting_text(facts), "", facts)
    for fault in facts["faults"]:
        yield Finding("devices", False, True, fault["message"], fault["remedy"], facts)


def fitting_text(facts: Mapping[str, Any]) -> str:
    """The line about a run that fits."""
    most, device = facts["most_bytes"] / GIB, facts["device_bytes"] / GIB
    contexts = f", with contexts of up to {facts['context_tokens']:,} tokens ({facts['context_reason']})"
    if not facts["gpus"]:
        return f"the run's processes take about {most:.1f} of {device:.1f} GiB{contexts}"
    gpus = "the GPU" if facts["gpus"] == 1 else f"the fullest of {facts['gpus']} GPUs"
    return f"{gpus} would hold {most:.1f} of {device:.1f} GiB{contexts}"


def table(facts: Mapping[str, Any]) -> Iterator[str]:
    """A line for each process: GiB of each of its devices, in all and by part."""
    if not facts["uses"]:
        yield "no process computes on a GPU"
        return
    names = list(facts["uses"][0]["parts"])
    used = [name for name in names if any(use["parts"][name] for use in facts["uses"])]
    head = ["process", "devices", "ranks", "GiB", *used]
    rows = [
        [
            use["process"],
            shown_devices(tuple(use["devices"])) or "machine",
            str(use["ranks"]),
            f"{use['bytes'] / GIB:.2f}",
            *(f"{use['parts'][name] / GIB:.2f}" for name in used),
        ]
        for use in facts["uses"]
    ]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    for row in (head, *rows):
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    if facts["gpus"] and facts["kv_tokens"]:
        yield f"KV of each engine: {facts['kv_tokens']:,} tokens"
    if facts["checkpointing_is_auto"] and any(use["process"] == "trainer" for use in facts["uses"]):
        yield f"activation checkpointing: {'on' if facts['activation_checkpointing'] else 'off'}"
    for turn in facts.get("turns", ()):
        yield f"while it is the {turn['stage']}'s turn: {turn['bytes'] / GIB:.1f} GiB at most"
    if facts["slots_bytes"]:
        yield f"memory of the machine for published versions: {facts['slots_bytes'] / GIB:.1f} GiB"
