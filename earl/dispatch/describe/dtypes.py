"""Dtypes by name, and the numpy dtypes that carry them.

numpy has no bfloat16: such arrays travel as uint16 views of the same bytes.
"""

from __future__ import annotations

import numpy as np

from earl.errors import LayoutError

NUMPY_DTYPES: dict[str, np.dtype] = {
    "uint8": np.dtype(np.uint8),
    "int8": np.dtype(np.int8),
    "bool": np.dtype(np.bool_),
    "int32": np.dtype(np.int32),
    "int64": np.dtype(np.int64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}


def numpy_dtype(name: str) -> np.dtype:
    """The numpy dtype that carries a named dtype. Raises LayoutError for an unknown name."""
    try:
        return NUMPY_DTYPES[name]
    except KeyError:
        raise LayoutError(f"dtype {name!r} cannot travel", f"use one of {sorted(NUMPY_DTYPES)}") from None
