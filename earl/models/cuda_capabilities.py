"""`python -m earl.models.cuda_capabilities` prints what each CUDA device is as JSON.

In a process of its own, because a launcher needs no torch: [[9, 0, 85899345920], ...], the compute capability
and the bytes of each; [] if torch has no device.
"""

from __future__ import annotations

import json
import sys

import torch


def main() -> None:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.cuda.get_device_properties(index) for index in range(count)]
    sys.stdout.write(json.dumps([[each.major, each.minor, each.total_memory] for each in devices]) + "\n")


if __name__ == "__main__":
    main()
