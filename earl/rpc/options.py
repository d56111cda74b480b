"""Channel options of every server and client: bounds and keepalive, decided in one place.

Keepalive notices a peer whose machine vanished. `ping_timeout_ms` is needed in addition to the keepalive
options: without it a frozen peer is noticed only after 60 s. It is a backstop, slow enough that a
machine with ten times the load it can bear drops no connection; leases of the application's own are
faster and name who was lost.
"""

from __future__ import annotations

from typing import Any

MAX_MESSAGE_BYTES = 32 << 20
# Largest message to a worker: commands, no data.
COMMAND_BYTES = 1 << 20
# A server's calls at once, of one connection (further ones wait) and of all (further ones are refused).
# Most of them wait for something; a thousand workers may share a connection.
CONNECTION_CALLS = 4096
SERVER_CALLS = 16_384
# Until a connection speaks TLS and HTTP/2; gRPC alone gives it two minutes.
HANDSHAKE_MS = 10_000
# Most bytes of a call's metadata: a token, a trace and little else.
METADATA_BYTES = 16 << 10

_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

# Keepalive every second, and the kernel's bound for what the other end's kernel does not acknowledge
# (TCP_USER_TIMEOUT, which gRPC takes from the keepalive's timeout). A peer that is busy, or frozen, still has
# the time of ping_timeout_ms: only its kernel must answer. For clients whose calls are repeated.
_DETECTS_OUTAGES = [
    ("grpc.keepalive_time_ms", 1_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
]


def server(request_bytes: int = MAX_MESSAGE_BYTES) -> list[tuple[str, Any]]:
    """The channel options of a server. request_bytes: the largest message that it accepts."""
    return [
        ("grpc.max_receive_message_length", request_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        *_KEEPALIVE,
        ("grpc.max_concurrent_streams", CONNECTION_CALLS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", METADATA_BYTES),
        # A taken port is an error, not a second listener that gets half of the connections.
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def client(*, loopback: bool, detects_outages: bool = False) -> list[tuple[str, Any]]:
    """The channel options of a client. loopback: it calls this machine, without any http_proxy of the
    environment, which would see tokens that are sent in plain text. detects_outages: a connection ends soon
    after the network to its other end was cut off, and another is tried every second.
    """
    proxy = ("grpc.enable_http_proxy", int(not loopback))
    return [*dict([*CLIENT, *(_DETECTS_OUTAGES if detects_outages else []), proxy]).items()]


CLIENT = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    *_KEEPALIVE,
    # Retries are the client's own (earl/rpc/client.py): one policy, bounded by the deadline.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two clients of one process to one server do not share a connection, so neither starves the other.
    ("grpc.use_local_subchannel_pool", 1),
]
