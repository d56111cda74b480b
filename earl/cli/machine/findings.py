"""Findings about a data plane from the probes' facts, each with a remedy. Pure.

facts: by probe name, what `earl.dispatch.probe` printed: {"facts": {…}, "error": null or {message, remedy}}.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from earl.config.data_plane import DataPlaneConfig

# The probes, in the order in which they run: each finding needs those up to its own.
PROBES = ("memory", "ucx", "nixl", "rdma")
IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")


@dataclass(frozen=True, slots=True)
class Finding:
    """One capability of this machine. needed: the data plane that was examined uses it. said: what was found.

    remedy: what to do about it, "" if nothing; also of what works, where it could do better.
    """

    name: str
    works: bool
    needed: bool
    said: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fatal(self) -> bool:
        return self.needed and not self.works


def data_plane(
    probe: str, config: DataPlaneConfig, probed: Mapping[str, Mapping[str, Any]]
) -> Iterator[Finding]:
    """The findings that can be made once a probe has ended. probed: the facts of it and those before it."""
    wire = config.wire if config.wired else ""
    match probe:
        case "memory":
            yield _arena_dir(probed["memory"])
            yield _shared_memory(probed["memory"], config.mapped)
        case "ucx":
            yield _wire("ucx", probed["ucx"], _ucx_offers, wire == "ucx")
        case "nixl":
            yield _wire("nixl", probed["nixl"], _nixl_offers, wire == "nixl")
        case "rdma":
            yield _rdma(probed, config)


def _arena_dir(memory: Mapping[str, Any]) -> Finding:
    facts, error = memory["facts"], memory["error"]
    shown = {name: facts[name] for name in _FILE_SYSTEM if name in facts}
    if error is not None and "path" not in facts:
        return Finding("arena directory", False, True, error["message"], error["remedy"], shown)
    kind = facts["file_system"]
    text = f"{facts['directory']} is a {kind} with {facts['free_bytes'] / (1 << 30):.1f} GiB free"
    remedy = "" if kind in IN_MEMORY else "name a tmpfs in data_plane.arena_dir: this is written to disk"
    return Finding("arena directory", True, True, text, remedy, shown)


_FILE_SYSTEM = ("directory", "file_system", "size_bytes", "free_bytes")


def _shared_memory(memory: Mapping[str, Any], needed: bool) -> Finding:
    facts, error = memory["facts"], memory["error"]
    shown = {name: value for name, value in facts.items() if name not in _FILE_SYSTEM}
    if error is not None:
        text = error["message"] if "path" in facts else "not tried: no arena could be made"
        return Finding("shared memory", False, needed, text, error["remedy"], shown)
    return Finding("shared memory", True, needed, _moved(facts), "", shown)


def _wire(name: str, probed: Mapping[str, Any], offers: Any, needed: bool) -> Finding:
    facts, error = probed["facts"], probed["error"]
    if error is not None:
        return Finding(name, False, needed, error["message"], error["remedy"], facts)
    return Finding(name, True, needed, f"{offers(facts)}; {_moved(facts)}", "", facts)


def _ucx_offers(facts: Mapping[str, Any]) -> str:
    transports = ", ".join(f"{name} ({', '.join(on)})" for name, on in facts["transports"].items())
    reason = facts["gathers_because"]
    gathers = f", what lies in pieces is gathered first ({reason})" if reason else ""
    return f"UCX {facts['version']} {'with' if facts['verbs'] else 'without'} verbs: {transports}{gathers}"


def _nixl_offers(facts: Mapping[str, Any]) -> str:
    return f"NIXL {facts['version']}: {', '.join(facts['plugins'])}"


def _moved(facts: Mapping[str, Any]) -> str:
    return f"{facts['moved_bytes'] >> 20} MiB over {facts['path']} at {facts['gb_per_s']:.1f} GB/s"


def _rdma(probed: Mapping[str, Mapping[str, Any]], config: DataPlaneConfig) -> Finding:
    """Works: a port is up, and NIXL moved bytes over it."""
    facts, error = probed["rdma"]["facts"], probed["rdma"]["error"]
    nixl, failure = probed["nixl"], probed["nixl"]["error"]
    finding = partial(Finding, "rdma", needed=config.require == "rdma", facts=facts)
    if error is not None:
        return finding(False, said=error["message"], remedy=error["remedy"])
    devices, ports = ", ".join(facts["devices"]), ", ".join(facts["ports_up"])
    without = ""
    if probed["ucx"]["facts"].get("verbs") is False:
        without = "; the UCX of ucxx's wheels is built without verbs"
    if not devices:
        text = f"not there: no device in /sys/class/infiniband{without}. Other machines are read over TCP"
        remedy = "where there is such a card: load its driver, and give containers /dev/infiniband"
        return finding(False, said=text, remedy=remedy)
    if not ports:
        remedy = "check /sys/class/infiniband/*/ports/*/state: cable, switch, subnet manager"
        return finding(False, said=f"not there: no port of {devices} is up{without}", remedy=remedy)
    if failure is not None or nixl["facts"].get("path") != "nixl-rdma":
        reason = failure["message"] if failure is not None else "NIXL moved bytes over TCP"
        remedy = failure["remedy"] if failure is not None else "unset what forces NIXL's wire"
        return finding(False, said=f"not usable: {ports} is up, but {reason}{without}", remedy=remedy)
    remedy = "" if config.wire == "nixl" else 'set data_plane.transport = "nixl" to use it'
    return finding(True, said=f"there: {ports} is up, and NIXL read over it{without}", remedy=remedy)
