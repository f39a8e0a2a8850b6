"""Functions of a generated module that compute numbers from numbers by instructions of the processor.

In plain kernel text, Numba infers the type of every operation, which takes most of the time of a compilation, and widens 32-bit
integers. A function of instructions (psnode.codecs.kernels.llvm) is traced only once, and its operations keep the types of the
numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from psnode.codecs.rows.values import Dtype, Value, below

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_FORMS = {
    "neg": "-{}", "abs": "abs({})", "floor": "round_down({})", "sqrt": "square_root({})", "not": "~{}",
    "where": "choose({}, {}, {})", "bits": "{}.view(np.uint32)", "from_bits": "{}.view(np.float32)",
    "settle": "{} >> np.uint32(16)",
}  # fmt: skip
_HINTS = {kind: "bool" if kind is Dtype.BOOL else f"np.{kind.value}" for kind in Dtype}


def literal(value: Value) -> str:
    """Return the text of a constant."""
    if value.kind is Dtype.BOOL:
        return f"np.bool_({value.detail})"
    number = np.array(value.detail, value.kind.value)
    return f"np.{value.kind.value}({float(number)!r})" if value.kind.real else f"np.{value.kind.value}({int(number)})"


class NumberFunctions:
    """The functions of a generated module. A function that is called in several places is written only once."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def call(self, ends: Sequence[Value], outside: Callable[[Value], str | None]) -> str:
        """Return the text that calls a function which computes `ends`.

        `outside` returns the expression of a value that is known where the function is called, or None if the function must
        compute the value.
        """
        passed = {value: found for value in below(ends) if (found := outside(value)) is not None}
        names, parameters, lines = dict[Value, str](), dict[str, tuple[str, Dtype]](), list[str]()
        for value in below(ends, known=list(passed)):
            if value.op == "constant":
                names[value] = literal(value)
                continue
            for arg in value.args:
                if arg in passed:
                    names[arg], _ = parameters.setdefault(passed[arg], (f"x{len(parameters) + 1}", arg.kind))
            names[value] = f"n{len(lines) + 1}"
            lines.append(f"    {names[value]} = {_operation(value, [names[arg] for arg in value.args])}")
        kinds = [_HINTS[end.kind] for end in ends]
        result = kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"
        taken = ", ".join(f"{name}: {_HINTS[kind]}" for name, kind in parameters.values())
        text = "\n".join([f"({taken}) -> {result}:", *lines, f"    return {', '.join(names[end] for end in ends)}"])
        name = self._names.setdefault(text, f"f{len(self._names) + 1}")
        return f"{name}({', '.join(parameters)})"

    def lines(self) -> list[str]:
        """Return the lines of the text of all functions."""
        return [line for text, name in self._names.items() for line in ("@instructions", f"def {name}{text}", "", "")]


def _operation(value: Value, names: list[str]) -> str:
    if value.op == "cast":
        return f"{names[0]}.astype(np.{value.kind.value})"
    return _FORMS[value.op].format(*names) if value.op in _FORMS else f"{names[0]} {INFIX[value.op]} {names[1]}"
