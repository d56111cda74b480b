"""The data plane against one controller, plain sockets and memcpy: time until consumers have their rows.

Three parts, each with its own processes: 4 producers to 4 consumers on this host (`measure`), hosts
behind capped network cards (`caps`), reads served while their producer computes (`busy`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from benchmarks.dispatch import busy, caps, peers
from benchmarks.dispatch.arms import ARMS, GRPC, absent
from benchmarks.dispatch.measure import measure
from benchmarks.dispatch.member import TRANSPORTS, VERIFIED
from benchmarks.dispatch.pattern import CONSUMERS, PRODUCERS, Pattern
from benchmarks.options import RESULTS, AsJson, Results
from benchmarks.record.execution import RecordedCommand
from benchmarks.record.results import publish

app = typer.Typer(add_completion=False)
# Paths that decide the figures: tools/staleness.py says how much they have changed since a result.
MEASURED_CODE = ("earl/dispatch",)

# The size, in MiB a worker, that the headline figures are of: the paper's largest.
HEADLINE_MIB = 187.0
DEFAULT_SIZES = "16,46,93,187,256"
PARTS = ("peers", "capped", "busy")
# The peers take seconds a round.
PEER_ROUNDS = 3
COMPARES = (
    f"Time from the moment when {PRODUCERS} producers are let go until the last of {CONSUMERS} consumers "
    "owns what it wants in a contiguous buffer touched before, data parallel 2 x context parallel 2: each "
    "consumer wants half of every row of two producers. The rows lie in the producers' memory, written "
    "there in place before the clock starts. The same processes run all arms, in turn within every round, "
    "each with other values, every element checked after every round; medians over the rounds. Two arms "
    "compute checksums, shm_verified and memcpy_hash_floor, no other. Consumers learn that a producer is "
    "ready by one byte through a pipe, in arms that need to. shm, ucx, nixl: EARL's Dispatcher, told once "
    "what a consumer wants of a round: it plans in the warm-up and again only where rows lie elsewhere; "
    "descriptors are published to the registry and fetched from it within the time (an embedded Valkey, "
    "which answers once it is on disk: publish_ms); ucx and nixl (on a CPU over TCP) are served by a "
    "process next to every producer. central_shm, central_ucx, central_nixl: a controller reads whole "
    "producers over that same transport and consumers read its copy: what is left is topology. "
    "central_grpc: a controller to which producers stream each reader's half rows in 1 MiB messages and "
    "which forwards every message at once, whole and without a copy of its own, with grpc's threads and "
    "with grpc.aio, the faster of the two at each size. socket: TCP straight from producers to consumers, "
    "sendmsg of rows where they lie, recv_into the target; both ends know what to send, so nothing is "
    "published, asked for or planned within its time. ucx_bytes_vs_socket: that time over the ucx arm's "
    "bytes_ms, the longest of its consumers' reads once it was known what lies where. memcpy_floor: "
    "np.copyto of the same slices from mapped, touched memory, one thread a consumer. unverified: shm over "
    "memcpy_floor. shm_verified: shm with the default checksums: producers hash what they publish, "
    "consumers the blocks of 1 MiB out of which they copied, which hold both halves of each row. "
    "memcpy_hash_floor: memcpy_floor and the same hash of the same bytes, once on each side. verified: "
    "shm_verified over memcpy_hash_floor. moved_bytes: what arrived at every hop, as counted there. A size "
    "is MiB a worker; a consumer reads as much in one go. Everything on one host; a network would punish a "
    "controller further (capped)."
)


@app.command(cls=RecordedCommand)
def dispatch(
    sizes: Annotated[str, typer.Option(help="MiB a worker, separated by commas.")] = DEFAULT_SIZES,
    rounds: Annotated[int, typer.Option(min=1, help="Measured rounds of every arm and size.")] = 7,
    arms: Annotated[
        str, typer.Option(help=f"Any of {', '.join(ARMS)}, {', '.join(PARTS)}, separated by commas; or all.")
    ] = "all",
    hosts: Annotated[int, typer.Option(min=2, max=64, help="Hosts behind capped network cards.")] = 16,
    nic_gbps: Annotated[
        float, typer.Option(min=0.001, help="Bandwidth of each card in Gbit/s, each way.")
    ] = 1.0,
    host_mib: Annotated[float, typer.Option(min=1, help="MiB that each of these hosts holds.")] = 128.0,
    interval_s: Annotated[
        float, typer.Option(min=0.01, help="Seconds that the producer computes, alone or while read.")
    ] = 1.5,
    as_json: AsJson = False,
    results: Results = RESULTS,
) -> None:
    """Compare the data plane with one controller, plain sockets and memcpy."""
    named = [*ARMS, *PARTS] if arms == "all" else arms.split(",")
    unknown = [name for name in named if name not in ARMS and name not in PARTS]
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: use {', '.join([*ARMS, *PARTS])}", param_hint="arms")
    try:
        sizes_mib = [float(size) for size in sizes.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{sizes!r} is no list of MiB such as 46,187", param_hint="sizes") from None
    for size in sizes_mib:
        Pattern.of(size)
    caps.curve(hosts)
    result: dict[str, Any] = {"compares": COMPARES, "cores": len(os.sched_getaffinity(0)), "rounds": rounds}
    if missing := absent(named):
        result["absent"] = missing
    chosen = [name for name in ARMS if name in named and name not in missing]
    if chosen:
        result.update(summary(asyncio.run(measure(chosen, sizes_mib, rounds))))
    if "peers" in named:
        result["compares"] += f" {peers.COMPARES}"
        result["peers"] = peer_figures(headline_of(sizes_mib), min(rounds, PEER_ROUNDS))
    if "capped" in named:
        result["compares"] += f" {caps.COMPARES}"
        capped = asyncio.run(caps.measure(hosts, nic_gbps, host_mib, rounds=max(1, rounds // 2)))
        result.update(capped=capped, **{name: capped[name] for name in capped if name.startswith("capped_")})
        result["within_limit_fraction"] = capped["within_limit_fraction"]
    if "busy" in named:
        result["compares"] += f" {busy.COMPARES}"
        result["busy"] = asyncio.run(
            busy.measure(
                [transport for transport in TRANSPORTS if transport not in absent(TRANSPORTS)],
                rounds,
                interval_s,
            )
        )
    publish("dispatch", result, results, as_json=as_json)


def headline_of(sizes_mib: Iterable[float]) -> float:
    return min(sizes_mib, key=lambda size: abs(size - HEADLINE_MIB))


def peer_figures(size_mib: float, rounds: int) -> dict[str, Any]:
    """Figures of Ray and TransferQueue with shm in turn, and how many times longer each takes.

    Where they are not installed: a message for each instead.
    """
    try:
        by_arm = asyncio.run(measure(["shm", *peers.PEERS], [size_mib], rounds))[f"{size_mib:g}"]
    except peers.PeersAbsent as absent:
        return dict.fromkeys(peers.PEERS, str(absent))
    times = {f"speedup_vs_{name}": round(by_arm[name]["ms"] / by_arm["shm"]["ms"], 3) for name in peers.PEERS}
    return {"mib": size_mib, **times, **by_arm}


def summary(by_size: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Figures of every size with their ratios; those of the headline size stand at the top."""
    summaries: dict[str, Any] = {}
    for size, by_arm in by_size.items():
        summaries[size] = {**ratios(by_arm), "arms": by_arm}
    headline = f"{headline_of(map(float, summaries)):g}"
    top = {name: value for name, value in summaries[headline].items() if name != "arms"}
    for name in ("ucx_vs_socket", "ucx_bytes_vs_socket"):
        against = [figures[name] for figures in summaries.values() if name in figures]
        if against:
            top[name] = min(against)
    return {"headline_mib": float(headline), **top, "sizes_mib": summaries}


def ratios(by_arm: dict[str, Any]) -> dict[str, Any]:
    """Returns how many times faster EARL's arms are than each baseline, and how much slower than memcpy."""
    ms = {arm: figures["ms"] for arm, figures in by_arm.items()}
    grpc = {arm: ms[arm] for arm in GRPC if arm in ms}
    ratio: dict[str, Any] = {}
    if grpc:
        ratio["central_grpc"] = min(grpc, key=grpc.__getitem__)
        ms["central_grpc"] = grpc[ratio["central_grpc"]]

    def divide(name: str, over: str, under: str) -> None:
        if over in ms and under in ms:
            ratio[name] = round(ms[over] / ms[under], 3)

    divide("speedup_vs_central_grpc", "central_grpc", "shm")
    divide("speedup_vs_central_same_transport", "central_shm", "shm")
    divide("times_memcpy_floor", "shm", "memcpy_floor")
    divide("unverified", "shm", "memcpy_floor")
    divide("verified", VERIFIED, "memcpy_hash_floor")
    for wire in TRANSPORTS.keys() - {"shm"}:
        divide(f"{wire}_speedup_vs_central_grpc", "central_grpc", wire)
        divide(f"{wire}_speedup_vs_central_same_transport", f"central_{wire}", wire)
        divide(f"{wire}_vs_socket", "socket", wire)
        if "socket" in ms and by_arm.get(wire, {}).get("bytes_ms"):
            ratio[f"{wire}_bytes_vs_socket"] = round(ms["socket"] / by_arm[wire]["bytes_ms"], 3)
    return ratio
