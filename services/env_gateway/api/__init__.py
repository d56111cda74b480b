"""The gateway as a service: its RPCs, their streams, connections that it opens to hosts, and its metrics."""
