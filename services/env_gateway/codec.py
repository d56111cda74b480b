"""Messages of the environment stream, as the gateway writes them."""

from __future__ import annotations

from dataclasses import asdict

from earl.env import stream_codec
from earl.env.codec import failure_message
from earl.message_fields import fill
from earl.obs.histogram import Histogram
from earl.obs.tracing import checked
from earl.v1 import env_pb2, events_pb2
from services.env_gateway.state.counts import Counts
from services.env_gateway.state.faults import FaultSummary
from services.env_gateway.state.pool import ListedEnvironment, Pool, ServedEnvironment

PROTOCOL = 1
# Quarantines of a host that ListHosts describes, and of an environment that ListEnvironments does. A host may
# have 1,000 environments, each with a reason of its own.
MOST_QUARANTINES = 32


def decode_environment(info: env_pb2.EnvironmentInfo) -> ServedEnvironment:
    """Decodes a Hello's declaration of one environment."""
    bounded = info.HasField("min_reward") and info.HasField("max_reward")
    bounds = (info.min_reward, info.max_reward) if bounded else None
    return ServedEnvironment(info.name, info.schema_hash, bounds, info, max(1, info.seats))


def reset(session: int, opening: env_pb2.Open, deadline_s: float) -> env_pb2.GatewayMessage:
    """A client's Open, as the host gets it."""
    traceparent = checked(opening.traceparent)
    return stream_codec.reset(
        session,
        opening.environment,
        opening.task_json,
        opening.seed,
        deadline_s,
        traceparent,
        opening.seats,
        opening.tools,
    )


def reset_again(message: env_pb2.GatewayMessage, session: int) -> env_pb2.GatewayMessage:
    """The same reset, of a session with another id."""
    again = env_pb2.GatewayMessage()
    again.CopyFrom(message)
    again.reset.session = session
    return again


def step(message: env_pb2.Step, session: int, deadline_s: float) -> env_pb2.GatewayMessage:
    """A client's step, as the host is asked; the client's message is made over."""
    message.session = session
    message.deadline_s = deadline_s
    return env_pb2.GatewayMessage(step=message)


def result(message: env_pb2.Result) -> env_pb2.SessionMessage:
    return env_pb2.SessionMessage(result=message)


def alive(session: int, seq: int, text: str) -> env_pb2.SessionMessage:
    """Builds the message that tells a client that its request is still in progress."""
    return env_pb2.SessionMessage(progress=env_pb2.Progress(session=session, seq=seq, message=text))


def failure(session: int, seq: int, ending: int, reason: str, text: str) -> env_pb2.SessionMessage:
    """A session's end without a result; with ending 0, a refusal that leaves the session as it is."""
    failed = env_pb2.Result(session=session, seq=seq, done=ending != 0, message=failure_message(reason, text))
    failed.ending = ending  # type: ignore[assignment]
    return env_pb2.SessionMessage(result=failed)


def failed_again(answer: env_pb2.SessionMessage, seq: int) -> env_pb2.SessionMessage:
    """The failure that ended a session, as the answer to a step that came after it."""
    again = env_pb2.SessionMessage()
    again.CopyFrom(answer)
    again.result.seq = seq
    return again


def listing(entries: dict[str, ListedEnvironment], counts: Counts) -> env_pb2.ListEnvironmentsResponse:
    """The listed environments, sorted by name."""
    response = env_pb2.ListEnvironmentsResponse()
    for name, listed in sorted(entries.items()):
        entry = response.entries.add(
            environment=listed.info or env_pb2.EnvironmentInfo(name=name),
            faults=faults(listed.faults),
            reset=latency(counts.resets.get(name)),
            step=latency(counts.steps.get(name)),
        )
        fill(entry, listed, without=("faults", "quarantines"))
        entry.quarantines.extend(listed.quarantines[:MOST_QUARANTINES])
    return response


def faults(summary: FaultSummary) -> env_pb2.Faults | None:
    return env_pb2.Faults(**asdict(summary)) if summary.count else None


def latency(histogram: Histogram | None) -> env_pb2.Latency | None:
    if histogram is None:
        return None
    return env_pb2.Latency(
        count=histogram.count,
        p50_s=histogram.quantile(0.5),
        p99_s=histogram.quantile(0.99),
        counts=histogram.counts,
        longest_s=histogram.longest,
    )


def hosts(pool: Pool, counts: Counts, now: float) -> env_pb2.ListHostsResponse:
    """The hosts, sorted by name."""
    waits = counts.queue_waits
    response = env_pb2.ListHostsResponse(
        waits=waits.count,
        wait_p50_s=waits.quantile(0.5),
        wait_p99_s=waits.quantile(0.99),
        wait_longest_s=waits.longest,
        totals=counts.totals,
        refused=counts.refused,
    )
    for host in sorted(pool.hosts.values(), key=lambda host: host.name):
        keys = [(host.name, environment) for environment in sorted(host.environments)]
        held = [(key[1], *rest) for key in keys if (rest := pool.quarantine.remaining(key, now)) is not None]
        response.hosts.add(
            host=host.name,
            environments=[environment for _, environment in keys],
            capacity=host.capacity,
            open_sessions=len(host.sessions),
            faults=sum(map(pool.quarantine.faults, keys)),
            quarantined=[environment for environment, _, _ in held],
            draining=host.draining,
            attached=host.attached,
            silent_s=max(0.0, now - host.last_seen_s),
            fault_texts=faults(pool.faults.summary(keys)),
            quarantines=[
                env_pb2.Quarantine(environment=environment, left_s=left_s, reason=reason)
                for environment, left_s, reason in held[:MOST_QUARANTINES]
            ],
            on_probation=[key[1] for key in keys if pool.quarantine.on_probation(key, now)],
        )
    return response


def encode_quarantine(source: str, environment: str, host: str, reason: str) -> events_pb2.Event:
    """The fact that a host's environment gets no sessions for a while."""
    fact = events_pb2.EnvironmentQuarantined(environment=environment, host=host, reason=reason)
    return events_pb2.Event(source=source, environment_quarantined=fact)
