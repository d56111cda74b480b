"""Frames of the wire: what is signed and within bounds passes, everything else is a FrameError."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from earl.dispatch.descriptor import ArenaRef, RegionRef
from earl.dispatch.transport import wire
from earl.dispatch.transport.base import Piece
from earl.dispatch.transport.wire import CHUNK_BYTES, MAX_BLOCKS, FrameError, Request, WirePiece

KEY = b"k" * 32


def request(*pieces: WirePiece, block_bytes: int = 0) -> Request:
    return Request(3, 4, block_bytes, pieces)


PIECE = WirePiece(1, 3, 64, (10, 4), (32, 4), 4)


def test_a_request_survives_its_frame():
    frame = wire.encode_request(request(PIECE, PIECE, block_bytes=1 << 20), KEY)
    padded = memoryview(frame + b"\0" * 100)
    assert wire.decode_request(padded, KEY) == request(PIECE, PIECE, block_bytes=1 << 20)
    assert (PIECE.size_bytes, PIECE.stop_bytes) == (160, 64 + 9 * 32 + 3 * 4 + 4)


@pytest.mark.parametrize(
    "bad, says",
    [
        (request(WirePiece(1, 3, 0, (CHUNK_BYTES + 1,), (1,), 1)), "bytes"),
        (request(WirePiece(1, 3, 0, (4, 4), (4,), 1)), "shape"),
        (request(WirePiece(1, 3, 0, (4,), (4,), 3)), "shape"),
        (request(WirePiece(1, 3, 0, (0,), (4,), 4)), "no Request"),
        (request(WirePiece(1, 3, -1, (4,), (4,), 4)), "no Request"),
        (request(), "no Request"),
        (request(WirePiece(1, 3, 0, (2,), (MAX_BLOCKS << 20,), 1), block_bytes=1 << 20), "blocks"),
        (request(WirePiece(1, 3, 0, (2,), (1 << 30,), 1), block_bytes=1), "blocks"),
    ],
)
def test_what_is_out_of_bounds_is_refused(bad: Request, says: str):
    with pytest.raises(FrameError, match=says):
        wire.decode_request(memoryview(wire.encode_request(bad, KEY)), KEY)


@settings(deadline=None)
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


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple),
    st.integers(1, 64),
    st.booleans(),
)
def test_splitting_a_piece_copies_the_same_elements(shape: tuple[int, ...], limit: int, transposed: bool):
    size = int(np.prod(shape))
    memory = np.arange(2 * size, dtype=np.int16)
    source = memory[: 2 * size : 2].reshape(shape)
    source = source.T if transposed else source
    expected = np.array(source)
    strides = tuple(s * 2 for s in np.empty(shape, np.int16).strides)
    strides = strides[::-1] if transposed else strides
    into = np.full(expected.shape, -1, np.int16)
    arena = ArenaRef("o", 1, "/x", 1, 1, "", "cpu", "h")
    piece = Piece(RegionRef(arena, 0, 1, 0, memory.nbytes), 0, strides, into)
    for part in piece.split(limit):
        assert part.size_bytes <= max(limit, 2)
        assert part.stop_bytes <= memory.nbytes
        np.copyto(
            part.target,
            np.ndarray(part.target.shape, np.int16, memory, part.offset_bytes, part.strides_bytes),
        )
    np.testing.assert_array_equal(into, expected)
