"""Support for integration tests: real processes of a run, started and ended one by one."""
