"""What integration tests share: real processes of a run, started and ended one by one."""
