"""`earl top`: one screen of a run that goes on."""
