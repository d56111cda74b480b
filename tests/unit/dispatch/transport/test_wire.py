"""Frames of the wire: what is signed and within bounds passes, everything else is a FrameError."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from earl.dispatch.transport import wire
from earl.dispatch.transport.wire import (
    CHUNK_BYTES,
    IN_PLACE_CHUNK_BYTES,
    MAX_BLOCK_BYTES,
    MAX_BLOCKS,
    MAX_PIECES,
    FrameError,
    Request,
)

KEY = b"k" * 32


def request(*pieces: tuple[int, ...], block_bytes: int = 0, regions: int = 1) -> Request:
    named = np.array([[7, 3]] * regions, "<u8")
    table = np.array(pieces, "<i8").reshape(-1, 5)
    return Request(3, 4, block_bytes, named.tobytes(), table.tobytes())


# Region, offset, rows, run, stride.
PIECE = (0, 64, 10, 16, 32)


def test_a_request_survives_its_frame():
    sent = request(PIECE, PIECE, block_bytes=1 << 20)
    frame = wire.encode_request(sent, KEY)
    found = wire.decode_request(memoryview(frame + b"\0" * 100), KEY)
    assert found == sent
    assert np.frombuffer(found.pieces, "<i8").reshape(-1, 5).tolist() == [list(PIECE)] * 2
    assert found.region_table().tolist() == [[7, 3]]


@pytest.mark.parametrize(
    "bad, says",
    [
        (request((0, 0, 1, IN_PLACE_CHUNK_BYTES + 1, 0)), "out of bounds"),
        (request((0, 0, 2, IN_PLACE_CHUNK_BYTES // 2 + 1, 0)), "bytes"),
        (request((0, 0, IN_PLACE_CHUNK_BYTES, IN_PLACE_CHUNK_BYTES, 1)), "bytes"),
        (request((0, 0, 1, CHUNK_BYTES + 1, 0), block_bytes=1 << 20), "bytes"),
        (request((1, 0, 1, 4, 0)), "out of bounds"),
        (request((-1, 0, 1, 4, 0)), "out of bounds"),
        (request((0, -1, 1, 4, 0)), "out of bounds"),
        (request((0, 1 << 62, 2, 4, 1 << 62)), "out of bounds"),
        (request((0, 0, 1 << 25, 1, 1 << 39)), "out of bounds"),
        (request((0, 0, 0, 4, 4)), "out of bounds"),
        (request((0, 0, 4, 0, 4)), "out of bounds"),
        (request((0, 0, 4, 4, -4)), "out of bounds"),
        (request(), "0 pieces"),
        (request(PIECE, regions=0), "of 0 regions"),
        (request(*[PIECE] * (MAX_PIECES + 1)), "pieces"),
        (Request(3, 4, 0, b"short", b""), "tables"),
        (request((0, 0, MAX_BLOCKS + 1, 1, 1 << 20), block_bytes=1 << 20), "blocks"),
        (request((0, 0, 2, MAX_BLOCKS, 1 << 30), block_bytes=1), "blocks"),
        (request(PIECE, block_bytes=MAX_BLOCK_BYTES + 1), "no Request"),
    ],
)
def test_what_is_out_of_bounds_is_refused(bad: Request, says: str):
    with pytest.raises(FrameError, match=says):
        wire.decode_request(memoryview(wire.encode_request(bad, KEY)), KEY)


@given(st.data())
def test_any_change_of_a_frame_is_noticed(data):
    frame = bytearray(wire.encode_request(request(PIECE), KEY))
    at = data.draw(st.integers(0, len(frame) - 1))
    frame[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        wire.decode_request(memoryview(frame), KEY)
    with pytest.raises(FrameError):
        wire.decode_request(memoryview(bytes(frame[:at])), KEY)


def test_another_key_is_refused():
    with pytest.raises(FrameError, match="MAC"):
        wire.decode_request(memoryview(wire.encode_request(request(PIECE), KEY)), b"other" * 6)
