"""The local stack: every process of a run on this machine, started, watched and ended together."""
