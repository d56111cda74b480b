"""`earl top`: one screen of a running run."""
