"""How kernels are compiled: ahead of use, with fixed signatures.

A signature refuses other dtypes, layouts and strides instead of recompiling in silence inside the loop, and
makes import the only moment at which anything compiles.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba import types

F = TypeVar("F", bound=Callable[..., Any])

f64 = types.float64
i64 = types.int64
# multiply-add in one instruction; nothing else of fast math: NaN and infinity keep their meaning
FUSED = {"contract"}
v1, v2, v3, v4 = (types.Array(f64, d, "C") for d in (1, 2, 3, 4))  # C-contiguous float64 arrays


def kernel(signature: Any) -> Callable[[F], F]:
    """Compile now for `signature`; without the GIL, division by zero gives infinity as in NumPy."""
    return cast(Callable[[F], F], numba.njit(signature, cache=True, nogil=True, error_model="numpy", fastmath=FUSED))


def inline(function: F) -> F:
    """A helper that is compiled into the kernels that call it: a third faster than a call with so many numbers."""
    return cast(F, numba.njit(nogil=True, error_model="numpy", fastmath=FUSED, forceinline=True)(function))
