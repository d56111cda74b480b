"""Exit codes of commands that are not an error's (docs/cli.md)."""

INTERRUPTED = 130
