"""What the gateway knows: sessions, clients, the hosts' pool, quarantine, counts. Pure."""
