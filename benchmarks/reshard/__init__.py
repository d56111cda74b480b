"""`earl bench reshard`: weights from a trainer's layout to that of an engine or of another trainer."""
