"""A rank for tests of what starts ranks: it says that it is there, and leaves when it is told to.

python -m tests.support.signalled_rank DIRECTORY
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from services.trainer.launch import follow_agent

if __name__ == "__main__":
    marker = Path(sys.argv[1]) / f"rank-{os.environ['RANK']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    follow_agent()
    marker.touch()
    while True:
        signal.pause()
