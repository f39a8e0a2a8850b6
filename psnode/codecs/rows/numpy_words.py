"""The operations of formulas in NumPy. Each works on arrays of rows or on single numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.norms import SAFE_HIGH, SAFE_LOW
from psnode.codecs.rows.language import LARGEST, ROW
from psnode.codecs.rows.values import Value, below

_OPERATIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "neg": np.negative,
    "abs": np.abs,
    "floor": np.floor,
    "sqrt": np.sqrt,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "where": np.where,
    "any": lambda x: _rows(x).any(axis=1, keepdims=True),
    "bits": lambda x: np.asarray(x, np.float32).view(np.uint32),
    "from_bits": lambda x: np.asarray(x, np.uint32).view(np.float32),
    "largest": lambda x: np.abs(_rows(x)).max(axis=1, keepdims=True),
    "tree_sum": lambda x: tree(_rows(x))[:, None],
    "l2_norm": lambda x: np.array([[norm_of(row)] for row in _rows(x)]),
}


def apply(value: Value, arguments: list[Any]) -> Any:
    """Return the result of the operation of `value` on `arguments`.

    The operation is a constant or parameter, a conversion, or an entry of _OPERATIONS.
    """
    if value.op in ("constant", "parameter"):
        return np.array(value.detail, value.kind.value)
    if value.op == "cast":
        return arguments[0].astype(value.kind.value)
    return _OPERATIONS[value.op](*arguments)


def number(end: Value, known: Mapping[Value, Any]) -> Any:
    """Return the number `end` of the array as a NumPy scalar of its kind.

    It may depend only on constants and on `known` numbers.
    """
    made = dict(known)
    with np.errstate(all="ignore"):
        for value in below([end], known=list(known)):
            made[value] = apply(value, [made[arg] for arg in value.args])
    return made[end]


def tree(x: Any) -> Any:
    """Return the sum of each row, added by the tree of psnode.codecs.kernels.norms."""
    e = x.reshape(-1, 8, 64).transpose(1, 0, 2)
    lanes = ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]))
    s = lanes.reshape(-1, 4, 16)
    sixteen = (s[:, 0] + s[:, 1]) + (s[:, 2] + s[:, 3])
    while sixteen.shape[1] > 1:
        sixteen = sixteen[:, ::2] + sixteen[:, 1::2]
    return np.asarray(sixteen[:, 0])


def norm_of(x: Floats) -> float:
    """Return the L2 norm of `x`, of any size, with the same bits as psnode.codecs.kernels.norms computes."""
    total = 0.0
    for row in np.concatenate([x, np.zeros(-x.size % ROW, np.float32)]).reshape(-1, ROW):
        with np.errstate(all="ignore"):
            total += float(tree((row * row)[None])[0])
    if SAFE_LOW <= total <= SAFE_HIGH:
        return float(np.sqrt(total))
    if total == 0 and not x.any():
        return 0.0
    total, top = 0.0, 0.0
    for each in np.abs(x.astype(np.float64)).tolist():
        total += each * each
        top = max(top, each)
    return min(max(float(np.sqrt(total)), top), LARGEST)


def _rows(x: Any) -> Any:
    return np.broadcast_to(x, (np.shape(x)[0] if np.ndim(x) else 1, ROW))
