"""A trainer on several nodes: what each is told, and what of it is refused."""

from __future__ import annotations

import pytest

from earl.errors import ConfigError
from services.trainer.launch import Nodes


def told(monkeypatch: pytest.MonkeyPatch, nodes: str, node: str, master: str) -> Nodes:
    for name, value in (("EARL_NODES", nodes), ("EARL_NODE", node), ("EARL_MASTER", master)):
        monkeypatch.setenv(name, value)
    return Nodes.from_environment()


def test_one_node_is_told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(monkeypatch, "", "", "") == told(monkeypatch, "1", "0", "trainer-0:29500") == Nodes()
    assert Nodes().share(3) == 3


def test_nodes_have_equal_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = told(monkeypatch, "2", "1", "trainer-0.trainer.earl.svc:29500")
    assert nodes == Nodes(2, 1, "trainer-0.trainer.earl.svc:29500")
    assert nodes.share(16) == 8
    with pytest.raises(ConfigError, match="3 ranks do not divide into EARL_NODES=2"):
        nodes.share(3)


@pytest.mark.parametrize(
    ("nodes", "node", "master"),
    [("2", "2", "a:1"), ("2", "", "a:1"), ("two", "0", "a:1"), ("2", "0", ""), ("2", "0", "trainer-0")],
)
def test_what_is_no_node_is_refused(
    monkeypatch: pytest.MonkeyPatch, nodes: str, node: str, master: str
) -> None:
    with pytest.raises(ConfigError):
        told(monkeypatch, nodes, node, master)
