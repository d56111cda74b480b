"""Measures what is not known of a stage yet: `earl profile`."""
