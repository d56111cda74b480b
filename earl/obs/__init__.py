"""Reports of a process about itself: logs, metrics, traces and the timeline."""
