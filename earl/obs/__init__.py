"""What a process reports about itself: logs, metrics, traces and the timeline."""
