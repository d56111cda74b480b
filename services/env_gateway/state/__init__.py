"""The state of the gateway: sessions, clients, the hosts' pool, quarantine, counts. Pure."""
