"""The `earl` command. Subcommands are entry points of the group "earl.commands", imported when called."""

import time

# The earliest moment of the command that its own code sees: figures count from here.
STARTED_AT = time.monotonic()
