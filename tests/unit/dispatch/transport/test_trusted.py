"""The wires carry no TLS: readers dial nobody on another machine unless the network is trusted.

(That owners do not listen there either: test_dispatch_arena.py.)
"""

import numpy as np
import pytest

from earl.config.data_plane import DataPlaneConfig
from earl.config.load import load_run
from earl.dispatch.describe.pieces import Pieces
from earl.dispatch.describe.regions import ArenaRef, Regions
from earl.dispatch.transport.nixl.transport import Nixl
from earl.dispatch.transport.ucx.transport import UcxTcp
from earl.errors import ConfigError, TransportUnavailable

AWAY = ArenaRef("o", 1, "", 1, 1 << 20, "10.0.0.1:1", "cpu", "elsewhere", "10.0.0.1:1")


def one_piece() -> Pieces:
    """The first 8 bytes of the only region."""
    zero, eight, one = (np.array([number], np.int64) for number in (0, 8, 1))
    regions = Regions(
        np.array([0]), np.ones(1, np.uint64), zero, eight, np.array([0, 0]), np.array([], np.uint64), 1 << 10
    )
    target = (np.zeros(8, np.uint8),)
    first = zero.astype(np.int32)
    return Pieces(regions, first, zero, one, eight, eight, target, first, zero, eight)


@pytest.mark.parametrize(("transport", "kind"), [("ucx", UcxTcp), ("nixl", Nixl)])
async def test_a_reader_dials_nobody_off_loopback(transport, kind):
    reader = kind(DataPlaneConfig(transport=transport), b"the run's secret")
    try:
        with pytest.raises(TransportUnavailable, match=r"10\.0\.0\.1:1 is off loopback.*trusted_network"):
            await reader.read(AWAY, one_piece(), verify=False)
    finally:
        await reader.close()


# The last two are names, which anybody may own.
@pytest.mark.parametrize("bind", ["10.0.0.1", "127.example.org", "127.0.0.1.example.org"])
def test_a_run_file_that_binds_elsewhere_says_so(tmp_path, bind):
    file = tmp_path / "run.toml"
    file.write_text(f'name = "x"\n[environment]\nname = "e"\n[data_plane]\nbind = "{bind}"\n')
    with pytest.raises(ConfigError, match="trusted_network = true"):
        load_run(file, [])
