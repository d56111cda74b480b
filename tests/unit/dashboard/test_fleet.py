"""The page's hosts and environments: each with its state, texts as text, and never more than a page shows."""

from __future__ import annotations

import json

import pytest

from earl.cli.lib.concerns import WAIT_S
from earl.cli.lib.gateway_codec import GatewayEnvironment, environment_of
from earl.cli.report.sections.encoding import encoded
from earl.dashboard.codec_services import CHARACTERS, ROWS, fleet
from earl.v1 import common_pb2, env_pb2
from services.env_gateway.codec import MOST_QUARANTINES
from services.env_gateway.state.faults import MOST_CHARACTERS
from tests.support.gateway_world import World

EVIL = "<img src=x onerror=alert(1)>\x1b[2J" + "x" * 5000


def shown(world: World, now_s: float = 1000.0) -> dict:
    """The section as the page is sent it."""
    environments = [environment_of(entry) for entry in world.gateway.listing().entries]
    return json.loads(encoded(fleet(environments, world.gateway.hosts(), now_s)))


def failed(world: World, host, number: int, text: str = "boom") -> None:
    """An episode on the host ends with its environment's error."""
    session = world.started(host, number)
    world.step(number, 1)
    world.answer(host, session, 1, done=True, ending=common_pb2.ENDING_ENV_ERROR, message=text)


def test_a_host_is_quarantined_then_on_probation_then_as_any_other():
    world = World(quarantine_faults=1, quarantine_s=30, lease_s=600)
    world.host("a-good", environments=("chess",))
    bad = world.host("bad")
    failed(world, bad, 1, "reward inf")
    section = shown(world)
    # The one with something wrong stands first.
    assert [(row["name"], row["state"], row["wrong"]) for row in section["rows"]] == [
        ("bad", "attached", True),
        ("a-good", "attached", False),
    ]
    [quarantine] = section["rows"][0]["quarantines"]
    assert quarantine == {"environment": "game", "until": 1030, "reason": "reward inf"}
    assert section["quarantines"] == ["game: host bad is in quarantine for 30 s more: reward inf"]
    [game] = [one for one in section["environments"] if one["name"] == "game"]
    assert (game["faults"], game["last_fault"], game["quarantined"]) == (1, "reward inf", 1)
    assert section["served"] == ["chess", "game"] and section["waiting"] == []
    world.open(2)
    assert shown(world)["waiting"] == []
    world.pass_time(WAIT_S + 0.2, [bad])
    assert shown(world)["waiting"] == ["1 episode waits for a host of game: its host is in quarantine"]
    world.pass_time(30.2 - WAIT_S, [bad])
    row = shown(world)["rows"][0]
    assert (row["name"], row["quarantines"], row["probation"], row["open"]) == ("bad", [], ["game"], 1)
    [reset] = bad.outbox.take("reset")
    world.answer(bad, reset.session, 0, done=True, ending=common_pb2.ENDING_OK)
    assert not any(row["wrong"] for row in shown(world)["rows"])


def test_a_host_whose_stream_broke_is_reconnecting_and_one_that_leaves_draining():
    world = World()
    host = world.host("h")
    world.open(1)
    world.gateway.detach(host, 1)
    assert shown(world)["rows"][0]["state"] == "reconnecting"
    again = world.host("h", instance=host.instance, epoch=2)
    world.gateway.handle_host(again, 2, env_pb2.HostMessage(drain=env_pb2.Drain()))
    assert shown(world)["rows"][0]["state"] == "draining"


def test_episodes_wait_for_an_environment_that_nobody_serves():
    world = World(lease_s=600)
    world.host("h")
    world.open(1, environment="chess")
    # Hosts of a run that starts may only be on their way.
    assert shown(world)["waiting"] == []
    world.pass_time(WAIT_S + 0.2)
    section = shown(world)
    assert section["waiting"] == ["1 episode waits for a host of chess: no host serves it"]
    assert section["served"] == ["game"]


def test_episodes_wait_for_hosts_that_drain_or_reconnect():
    world = World(lease_s=600, reconnect_s=600)
    drains, breaks = world.host("drains", capacity=1), world.host("breaks", capacity=1)
    for number in (1, 2, 3):
        world.open(number)
    world.pass_time(WAIT_S + 0.2)
    # It waits for free capacity alone.
    assert shown(world)["waiting"] == []
    world.gateway.handle_host(drains, 1, env_pb2.HostMessage(drain=env_pb2.Drain()))
    assert shown(world)["waiting"] == []
    world.gateway.detach(breaks, 1)
    hosts_text = "its 2 hosts are draining, reconnecting or without capacity"
    assert shown(world)["waiting"] == [f"1 episode waits for a host of game: {hosts_text}"]
    world.host("breaks", instance=breaks.instance, epoch=2)
    assert shown(world)["waiting"] == []


def test_a_bounded_number_of_quarantines_is_described_and_the_others_are_counted():
    world = World(quarantine_faults=1, quarantine_s=30, lease_s=600)
    names = tuple(f"game{number:02}" for number in range(40))
    hosts = [world.host(f"h{number:02}", environments=names) for number in range(40)]
    for host in hosts:
        for name in names:
            world.gateway.pool.quarantine.fault((host.name, name), world.now, EVIL[:MOST_CHARACTERS])
    [first, *_] = world.gateway.hosts().hosts
    assert len(first.quarantined) == 40 and len(first.quarantines) == MOST_QUARANTINES
    [entry, *_] = world.gateway.listing().entries
    assert entry.quarantined == 40 and len(entry.quarantines) == MOST_QUARANTINES
    section = shown(world)
    assert section["rows"][0]["more"] == 40 - MOST_QUARANTINES
    assert section["quarantines"][MOST_QUARANTINES] == "game00: 8 more hosts are in quarantine"


def test_text_of_environments_is_bounded_and_visible():
    world = World(quarantine_faults=1, quarantine_s=30, lease_s=600)
    failed(world, world.host("bad"), 1, EVIL)
    section = shown(world)
    texts = [
        section["rows"][0]["quarantines"][0]["reason"],
        section["environments"][0]["last_fault"],
        section["quarantines"][0],
    ]
    for text in texts:
        assert "\x1b" not in text and "␛[2J" in text and "<img" in text and len(text) <= CHARACTERS + 1


@pytest.mark.parametrize("count", [ROWS, ROWS + 7])
def test_no_more_is_listed_than_a_page_shows(count: int):
    environments = [
        GatewayEnvironment(f"game{at}", "", "", None, [], 0, 0, 0, int(at == count - 1), 0)
        for at in range(count)
    ]
    hosts = env_pb2.ListHostsResponse(
        hosts=[env_pb2.HostStatus(host=f"h{at}", attached=at < count - 1) for at in range(count)]
    )
    section = fleet(environments, hosts, 0.0)
    assert len(section["rows"]) == len(section["environments"]) == ROWS
    assert section["more"] == {"hosts": count - ROWS, "environments": count - ROWS}
    # Something is wrong with the last of each.
    assert section["rows"][0]["name"] == f"h{count - 1}"
    assert section["environments"][0]["name"] == f"game{count - 1}"
