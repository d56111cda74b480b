"""`earl compare`: the figures that decide between runs, and their charts on the same axes."""
