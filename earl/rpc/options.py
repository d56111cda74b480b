"""Channel options of every server and client: message bounds and keepalive, decided in one place.

Keepalive notices a peer whose machine vanished. `ping_timeout_ms` is needed beside the keepalive
options: without it a frozen peer is noticed only after 60 s. It is a backstop, slow enough that a
machine with ten times the load it can bear drops no connection; leases of the application's own are
faster and say who was lost.
"""

from __future__ import annotations

MAX_MESSAGE_BYTES = 32 << 20

_SIZES = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
]
_KEEPALIVE = [
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]

SERVER = [
    *_SIZES,
    *_KEEPALIVE,
    # A taken port is an error, not a second listener that gets half of the connections.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]
CLIENT = [
    *_SIZES,
    *_KEEPALIVE,
    # Retries are the client's own (earl/rpc/client.py): one policy, bounded by the deadline.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two clients of one process to one server do not share a connection, so neither starves the other.
    ("grpc.use_local_subchannel_pool", 1),
]
