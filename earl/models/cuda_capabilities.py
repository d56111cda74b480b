"""`python -m earl.models.cuda_capabilities` prints the compute capability of each CUDA device as JSON.

In a process of its own, because a launcher needs no torch: [[9, 0], ...], [] if torch has no device.
"""

from __future__ import annotations

import json
import sys

import torch


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    sys.stdout.write(json.dumps([torch.cuda.get_device_capability(index) for index in range(count)]) + "\n")


if __name__ == "__main__":
    main()
