"""Linear layers of an engine: weights that are written in place, multiplied in the layout that is fastest.

On a CPU large matrices are kept a second time in oneDNN's blocked layout, which F.linear would make again
in every call: at batch 1 to 64 that is half of the time. `pack` makes it again after a write.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F

# Matrices with fewer elements cost more to call in the blocked layout than they gain.
PACK_ELEMENTS = 1 << 17
# Products of other shapes that oneDNN keeps compiled, up to 0.6 MiB each with AVX-512. Nearly every step has
# another number of rows, so that they would fill its own bound of 1,024; a product compiles in a millisecond.
KEPT_PRODUCTS = 48


def bound_products() -> None:
    """Bounds what oneDNN keeps compiled, unless the environment does. To be called before anything is
    computed."""
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(KEPT_PRODUCTS))


def can_pack(dtype: torch.dtype) -> bool:
    """Returns whether oneDNN is available and computes in this dtype."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return False
    return dtype == torch.float32 or (
        dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class Linear:
    """y = x W^T + b; x [T, in], weight [out, in], bias [out] or None. `pack` after every write."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.weight, self.bias = weight, bias
        self._blocked: torch.Tensor | None = None
        self._packs = (
            weight.device.type == "cpu" and weight.numel() >= PACK_ELEMENTS and can_pack(weight.dtype)
        )

    def pack(self) -> None:
        """Puts the weight that was written to use."""
        if self._packs:
            self._blocked = torch.ops.mkldnn._reorder_linear_weight(self.weight)

    def unpack(self) -> None:
        """Drops what `pack` made, until it is called again."""
        self._blocked = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._blocked is None:
            return F.linear(x, self.weight, self.bias)
        return torch.ops.mkldnn._linear_pointwise(x, self._blocked, self.bias, "none", [], "")
