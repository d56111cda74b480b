"""What a process says about itself: logs now; metrics, traces and the timeline as they come."""
