"""Runs on several machines, by the cluster manager that is there: docs/adr/0020."""
