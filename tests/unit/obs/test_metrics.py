"""GET /metrics: what is shown is in the catalogue, parses, and nobody who may not look does."""

import asyncio
import contextlib
import re
import ssl

import pytest
from prometheus_client.parser import text_string_to_metric_families

from earl.errors import ConfigError, InsecureBind, PortInUse
from earl.obs.catalogue import METRICS, Sample
from earl.obs.exposition import exposition
from earl.obs.histogram import Histogram
from earl.rpc import TlsFiles, token_file
from earl.rpc import metrics_endpoint as endpoint_module
from earl.rpc.metrics_endpoint import MAX_CONNECTIONS, MAX_REQUEST_BYTES, MetricsEndpoint
from earl.rpc.token_file import Role, make
from earl.rpc.tokens import TokenFile
from services.env_gateway.api.metrics import figures
from services.scheduler.api.metrics import BATCH
from services.trainer.api.metrics import figures as stage_figures
from services.trainer.ranks.activity import Activity
from tests.support.certificates import certified
from tests.support.gateway_world import World

SERVICES = ("rpc", "scheduler", "gateway", "rollout", "trainer", "reference", "teacher", "reward_model")


def families(samples):
    text, content_type = exposition(samples)
    assert content_type.startswith("text/plain")
    return {one.name: one for one in text_string_to_metric_families(text.decode())}


def example(metric):
    value = Histogram() if metric.kind == "histogram" else 3.0
    if isinstance(value, Histogram):
        value.add(0.003)
    return Sample(metric.name, value, {label: f'a "{label}"\n' for label in metric.labels})


def test_every_metric_parses_as_what_it_is():
    found = families([example(metric) for metric in METRICS.values()])
    for metric in METRICS.values():
        family = found[metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(metric.labels)
    assert "process_resident_memory_bytes" in found


def test_names_follow_prometheus_conventions():
    for metric in METRICS.values():
        assert re.fullmatch(rf"earl_({'|'.join(SERVICES)}|build)_[a-z][a-z0-9_]*", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not re.search(r"_(ms|percent|fraction|gb|mib)(_|$)", metric.name), metric.name
        assert metric.help[-1] == "." and not metric.help[0].islower(), metric.name
        if metric.kind == "histogram":
            assert metric.name.endswith(("_seconds", "_bytes", "_tokens")), metric.name
        assert "le" not in metric.labels and "quantile" not in metric.labels, metric.name


def test_figures_of_a_batch_are_gauges_without_labels():
    assert {"recorded_episodes", "teacher_weight"} <= set(BATCH.values())
    assert all(METRICS[name].kind == "gauge" and not METRICS[name].labels for name in BATCH)


def test_a_histogram_is_cumulative():
    histogram = Histogram((0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        histogram.add(value)
    (family,) = (
        one
        for name, one in families([Sample("earl_gateway_queue_wait_seconds", histogram)]).items()
        if name == "earl_gateway_queue_wait_seconds"
    )
    buckets = {sample.labels["le"]: sample.value for sample in family.samples if "le" in sample.labels}
    assert buckets == {"0.1": 2.0, "1": 3.0, "+Inf": 4.0}
    totals = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples if not sample.labels}
    assert totals == {"count": 4.0, "sum": pytest.approx(7.65)}


@pytest.mark.parametrize(
    "sample", [Sample("earl_gateway_horses", 1.0), Sample("earl_gateway_hosts", 1.0, {"colour": "bay"})]
)
def test_what_the_catalogue_lacks_is_refused(sample):
    with pytest.raises(ConfigError, match=sample.name):
        exposition([sample])


def test_a_gateway_shows_what_it_counted():
    world = World()
    host = world.host(capacity=2)
    world.started(host)
    world.open(2)
    world.open(3)
    found = {(one.name, *one.labels.values()): one.value for one in figures(world.gateway, world.now)}
    assert found["earl_gateway_hosts",] == 1.0
    assert found["earl_gateway_open_sessions", "game"] == 2.0
    assert found["earl_gateway_queued_sessions", "game"] == 1.0
    assert found["earl_gateway_sessions_total",] == 3.0
    resets = found["earl_gateway_reset_seconds", "game"]
    assert isinstance(resets, Histogram) and resets.count == 1
    exposition(figures(world.gateway, world.now))


def test_a_trainer_on_paced_devices_counts_its_passes():
    activity = Activity()
    assert not any("passes" in sample.name for sample in stage_figures(activity, "trainer"))
    activity.gauges = {"paced_steps": 7.0, "late_steps": 2.0}
    samples = list(stage_figures(activity, "trainer"))
    passes = {sample.name: sample.value for sample in samples if "passes" in sample.name}
    assert passes == {"earl_trainer_paced_passes_total": 7.0, "earl_trainer_late_passes_total": 2.0}
    exposition(samples)


# --- over HTTP ---------------------------------------------------------------------------------


async def ask(address, request, *, tls=None):
    """Status and body; (0, b"") if the connection was cut."""
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        return (int(head.split()[1]), body) if head else (0, b"")
    except ConnectionError:
        return 0, b""
    finally:
        writer.close()


def get(path="/metrics", *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: here", *headers, "", ""]).encode()


def gauge():
    yield Sample("earl_gateway_hosts", 3.0)


def broken():
    yield Sample("earl_gateway_hosts", 3.0)
    raise RuntimeError("half of it")


@pytest.fixture
async def serve():
    opened = []

    async def serve(*sources, **options):
        opened.append(MetricsEndpoint("127.0.0.1:0", sources, **options))
        return await opened[-1].start()

    yield serve
    for one in opened:
        await one.close()


async def test_who_asks_is_answered_once(serve):
    address = await serve(gauge)
    status, body = await ask(address, get())
    assert status == 200 and b"\nearl_gateway_hosts 3.0\n" in body and b"earl_build_info{version=" in body
    assert (await ask(address, get("/metrics?name[]=up")))[0] == 200
    assert (await ask(address, get("/")))[0] == 404
    assert (await ask(address, get().replace(b"GET", b"POST")))[0] == 405
    openmetrics = get("/metrics", "Accept: application/openmetrics-text; version=1.0.0")
    assert (await ask(address, openmetrics))[1].endswith(b"# EOF\n")


async def test_a_token_is_asked_for(serve):
    address = await serve(gauge, tokens="right")
    assert (await ask(address, get()))[0] == 401
    assert (await ask(address, get("/metrics", "Authorization: Bearer wrong")))[0] == 401
    assert (await ask(address, get("/metrics", "authorization: Bearer right")))[0] == 200


async def test_viewers_and_operators_may_look_and_no_other_role(serve, tmp_path):
    entries = {role: make(role) for role in Role}
    token_file.write(tmp_path / "tokens.toml", entries.values())
    address = await serve(gauge, tokens=TokenFile(tmp_path / "tokens.toml"))
    for role, entry in entries.items():
        status, _ = await ask(address, get("/metrics", f"Authorization: Bearer {entry.token}"))
        assert status == (200 if role in (Role.OPERATOR, Role.VIEWER) else 403)
    token_file.write(tmp_path / "tokens.toml", [make(Role.OPERATOR)])
    revoked = get("/metrics", f"Authorization: Bearer {entries[Role.OPERATOR].token}")
    assert (await ask(address, revoked))[0] == 401


async def test_tls_where_there_are_files(serve, tmp_path):
    tls = certified(tmp_path)
    address = await serve(gauge, tls=tls)
    context = ssl.create_default_context(cafile=str(tls.authority))
    assert (await ask(address, get(), tls=context))[0] == 200
    assert (await ask(address, get()))[0] == 0


async def test_who_connects_and_never_greets_is_disconnected(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(endpoint_module, "REQUEST_S", 0.05)
    host, port = (await serve(gauge, tls=certified(tmp_path))).rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(30):
        assert await reader.read() == b""
    writer.close()


async def test_off_loopback_needs_tls_and_token(tmp_path):
    with pytest.raises(InsecureBind):
        MetricsEndpoint("0.0.0.0:0", [gauge])
    strong, tls = make(Role.OPERATOR).token, TlsFiles(authority=tmp_path)
    with pytest.raises(ConfigError, match="TLS"):
        await MetricsEndpoint("0.0.0.0:0", [gauge], tokens=strong, tls=tls).start()


async def test_a_taken_port_is_named(serve):
    address = await serve(gauge)
    with pytest.raises(PortInUse, match=r"obs\.metrics"):
        await MetricsEndpoint(address, [gauge]).start()


async def test_nothing_is_served_without_a_bind():
    endpoint = MetricsEndpoint("", [gauge])
    assert await endpoint.start() == ""
    await endpoint.close()


async def test_what_goes_wrong_stays_with_who_asked(serve, monkeypatch):
    monkeypatch.setattr(endpoint_module, "REQUEST_S", 60.0)
    address = await serve(broken)
    assert (await ask(address, get()))[0] == 500
    assert (await ask(address, b"x" * (2 * MAX_REQUEST_BYTES)))[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(endpoint_module, "REQUEST_S", 0.05)
        assert (await ask(address, b"GET /metrics HTTP/1.1\r\n"))[0] == 0  # and never the rest
    assert (await ask(address, b"\x16\x03\x01\r\n\r\n"))[0] == 404


async def test_who_asks_nothing_gives_way_to_who_does(serve, monkeypatch):
    monkeypatch.setattr(endpoint_module, "REQUEST_S", 600.0)
    address = await serve(gauge)
    host, port = address.rsplit(":", 1)
    idle = [await asyncio.open_connection(host, int(port)) for _ in range(2 * MAX_CONNECTIONS)]
    for _, writer in idle:
        writer.write(b"GET /metrics HTTP/1.1\r\n")  # and never the rest
    assert (await ask(address, get()))[0] == 200
    # The oldest were cut off, and no more of them than had to be.
    for reader, _ in idle[:MAX_CONNECTIONS]:
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert not idle[-1][0].at_eof()
    for _, writer in idle:
        writer.close()
