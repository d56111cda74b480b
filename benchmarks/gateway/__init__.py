"""`earl bench gateway`: what the environment gateway carries, holds and survives."""
