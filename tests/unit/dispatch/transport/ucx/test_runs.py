"""Payloads in several places, messages of them, and UCP's structures as its header has them."""

from __future__ import annotations

import asyncio
import ctypes
import re
from pathlib import Path

import libucx
import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import Regions
from earl.dispatch.transport.copying import gather
from earl.dispatch.transport.ucx import ucp
from earl.dispatch.transport.ucx.endpoint import Endpoint
from earl.dispatch.transport.ucx.node import UcxNode
from earl.dispatch.transport.ucx.runs import Runs, address_of, digest, runs_of
from earl.errors import PeerLost

HEADERS = Path(libucx.__file__).parent / "include"
C_TYPES = {
    "uint32_t": ctypes.c_uint32,
    "void*": ctypes.c_void_p,
    "union": ctypes.c_void_p,
    "ucp_datatype_t": ctypes.c_uint64,
    "ucs_memory_type_t": ctypes.c_int,
    "ucp_mem_h": ctypes.c_void_p,
}


def without_comments(header: str) -> str:
    return re.sub(r"/\*.*?\*/", "", (HEADERS / header).read_text(), flags=re.DOTALL)


def test_the_request_parameters_lie_as_the_header_says():
    body = re.search(
        r"typedef struct \{((?:(?!typedef).)*)\} ucp_request_param_t;",
        without_comments("ucp/api/ucp.h"),
        re.S,
    )
    assert body is not None
    # A union of pointers is a pointer.
    flat = re.sub(r"union \{[^}]*\}", "union", body[1])
    fields = [re.match(r"(\w+)\s*(\**)\s*(\w+)$", one.strip()) for one in flat.split(";") if one.strip()]
    found = [(one[3], C_TYPES[one[1] + one[2]]) for one in fields if one is not None]
    assert len(found) == len(fields)
    assert found == list(ucp.RequestParam._fields_)


@pytest.mark.parametrize(
    "header, says",
    [
        ("ucp/api/ucp.h", r"UCP_OP_ATTR_FIELD_DATATYPE\s*= UCS_BIT\(3\)"),
        ("ucp/api/ucp.h", r"UCP_DATATYPE_IOV\s*= 2,"),
        ("ucp/api/ucp.h", r"typedef struct ucp_dt_iov \{\s*void\s*\*buffer;\s*size_t\s*length;\s*\}"),
        ("ucp/api/ucp_def.h", r"typedef uint64_t\s+ucp_datatype_t;"),
        ("ucp/api/ucp_def.h", r"typedef uint64_t\s+ucp_tag_t;"),
        ("ucs/type/status.h", r"UCS_INPROGRESS\s*=\s*1,"),
        ("ucs/type/status.h", r"UCS_ERR_LAST\s*=\s*-100"),
        ("ucs/type/status.h", r"\} UCS_S_PACKED ucs_status_t;"),
        ("ucp/api/ucp_version.h", r"UCP_API_MAJOR\s+1\s+#define UCP_API_MINOR\s+21"),
    ],
)
def test_the_constants_are_the_headers(header: str, says: str):
    assert re.search(says, without_comments(header))


def test_with_another_ucx_everything_goes_through_a_buffer(monkeypatch: pytest.MonkeyPatch):
    rows, run = np.array([9, 9]), np.array([ucp.IN_PLACE_BYTES, ucp.IN_PLACE_BYTES - 1])
    assert ucp.refusal() == ""
    assert ucp.through_buffer(rows, run).tolist() == [False, True]
    monkeypatch.setattr(ucp, "KNOWN", (1, 20))
    ucp.refusal.cache_clear()
    try:
        assert "UCX 1.21.0 is not UCX 1.20" in ucp.refusal()
        assert ucp.through_buffer(rows, run).all()
        assert not ucp.through_buffer(rows[:1] * 0 + 1, run[1:]).any(), "one run needs no list of runs"
    finally:
        ucp.refusal.cache_clear()


def pieces_of(parts: list[tuple[int, int, int]]) -> tuple[np.ndarray, Pieces]:
    """Memory, and pieces of (rows, run, gap) one behind the other in it."""
    rows, run, gap = np.array(parts, np.int64).reshape(-1, 3).T
    stride = run + gap
    spans = rows * stride
    offset = np.cumsum(spans) - spans
    memory = np.random.default_rng(len(parts)).integers(0, 256, int(spans.sum()) + 1, dtype=np.uint8)
    zero = np.zeros(1, np.int64)
    regions = Regions(zero, zero.astype(np.uint64), zero, zero + len(memory), np.zeros(2, np.int64), zero[:0])
    nowhere = np.zeros(len(rows), np.int64)
    index = nowhere.astype(np.int32)
    return memory, Pieces(regions, index, offset, rows, run, stride, (), index, nowhere, nowhere)


PARTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 30)), min_size=1, max_size=12
)


@given(PARTS, st.integers(0, 41))
def test_runs_are_the_pieces_in_their_order(parts: list[tuple[int, int, int]], threshold: int):
    memory, pieces = pieces_of(parts)
    expected = np.zeros(pieces.size_bytes, np.uint8)
    gather(memory, pieces, expected)
    short = pieces.run < threshold
    buffer = np.zeros(pieces.size_bytes, np.uint8) if short.any() else None
    if buffer is not None:
        gather(memory, pieces.take(np.flatnonzero(short)), buffer)
    runs = runs_of(pieces, address_of(memory) + pieces.offset, pieces.stride, short, buffer, memory)
    assert runs.nbytes == len(expected)
    assert b"".join(ctypes.string_at(*one) for one in runs.table.tolist()) == expected.tobytes()
    assert digest(runs) == digest(expected) == xxhash.xxh3_64_intdigest(expected.data)
    ends = runs.table.sum(axis=1)
    assert (ends[:-1] != runs.table[1:, 0]).all(), "neighbours are one run"


def rows_of(array: np.ndarray) -> Runs:
    """Every row of a two-dimensional array, whatever its length."""
    first = address_of(array) + np.arange(array.shape[0]) * array.strides[0]
    table = np.stack([first, np.full(array.shape[0], array.shape[1] * array.itemsize)], axis=1)
    return Runs(table.astype(np.uint64), array)


def over(body) -> None:
    """Runs body(there, back) with two endpoints of this process that are connected with each other."""

    async def main() -> None:
        node = UcxNode(loopback=True)
        there, back = node.endpoint("other"), node.endpoint("one")
        there.connect(back.address)
        back.connect(there.address)
        try:
            async with asyncio.timeout(10):
                await body(there, back)
        finally:
            there.abort()
            back.abort()

    asyncio.run(main())


SHAPES = [(1, 40_000), (3, 17), (1000, 1000), (1000, 1), (7, 300_000), (20, 65_537)]


@pytest.mark.parametrize("rows, run", SHAPES)
def test_a_message_of_runs_arrives_in_runs(rows: int, run: int):
    source = np.random.default_rng(rows).integers(0, 256, (rows, 2 * run), dtype=np.uint8)[:, run // 2 :][
        :, :run
    ]
    flat, spread = np.zeros(rows * run, np.uint8), np.zeros((rows, run + 9), np.uint8)

    async def body(there: Endpoint, back: Endpoint) -> None:
        await asyncio.gather(there.send(rows_of(source), 7), back.receive(flat, 7))
        await asyncio.gather(there.send(flat, 8), back.receive(rows_of(spread[:, :run]), 8))
        spread[:, :run] ^= 0xFF
        await asyncio.gather(back.send(rows_of(source), 9), there.receive(rows_of(spread[:, :run]), 9))
        assert not there._pending and not back._pending

    over(body)
    np.testing.assert_array_equal(flat.reshape(rows, run), source)
    np.testing.assert_array_equal(spread[:, :run], source)
    assert not spread[:, run:].any(), "a receive wrote beside its runs"


@pytest.mark.parametrize("side", ["sender", "receiver"])
def test_an_aborted_endpoint_ends_messages_of_runs(side: str):
    """The sender waits for somebody to receive, the receiver for a message: neither ever comes."""
    memory = np.zeros((64, 2 * ucp.IN_PLACE_BYTES), np.uint8)[:, : ucp.IN_PLACE_BYTES]

    async def body(there: Endpoint, back: Endpoint) -> None:
        waiting = there.send(rows_of(memory), 1) if side == "sender" else there.receive(rows_of(memory), 1)
        # Both workers have seen each other: whatever was sent has been announced.
        await asyncio.gather(there.send(b"hello", 2), back.receive(np.zeros(5, np.uint8), 2))
        assert not waiting.done() and len(there._pending) == 1
        there.abort()
        with pytest.raises(PeerLost, match="other"):
            await waiting
        assert not there._pending, "its runs are held for ever"
        with pytest.raises(PeerLost):
            await there.send(rows_of(memory), 3)

    over(body)
