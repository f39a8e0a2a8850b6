"""Subjects of the tests of formulas: codecs of psnode's at settings that have one, and what runs a program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psnode.codecs import Codec, Payload, get_codec, table
from psnode.codecs.base import Floats
from psnode.codecs.rng import Key
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.known import formula_of
from tests.codecs.family import SHAPES, VALUES, gaussian
from tests.codecs.test__golden import FOLDER, fixed_input

EMPTY = np.empty(0, np.float32)
KEY = Key.derive(1, "golden")  # that of the golden payloads

# Codecs with formulas, at their defaults and at others.
FORMS = ["bf16", "fp16", "qsgd", "qsgd:levels=1,norm=max", "qsgd:levels=127", "qsgd:levels=300"]
GOLDEN = {name: name for name in ("bf16", "fp16", "qsgd")}  # golden payloads of codecs that have a formula: file and spec


def with_formula() -> set[str]:
    """Ids of all codecs that have a formula by default."""
    return {name for name in table.CODECS if table.is_known(name) and formula_of(get_codec(name)) is not None}


def program(codec: Codec) -> Program:
    formula = formula_of(codec)
    assert formula is not None, codec
    return program_of(formula)


def ties(n: int) -> Floats:
    """Multiples of 1/2 of a bucket's largest value, 15: half of them lie between two levels of qsgd with norm=max."""
    x = (np.arange(n) % 61 - 30).astype(np.float32) / 2
    x[::512] = 15
    return x


def inputs() -> Iterator[tuple[str, Floats]]:
    """All contract inputs that are not empty, and longer ones."""
    yield "golden", fixed_input()
    yield "ties", ties(4 * 512 + 100)
    yield "sparse", np.where(gaussian(3000) > 0.3, gaussian(3000, seed=1), 0).astype(np.float32)
    yield "long", gaussian(64 * 512 + 77)
    yield from VALUES.items()
    yield from ((f"shape {shape}", gaussian(*shape)) for shape in SHAPES if 0 not in shape)


def check(codec: Codec, functions: Functions, x: Floats) -> None:
    """Body, error, decoded and added values of a program are those of the codec, bit for bit."""
    coder, key = Coder(program(codec), functions), np.array(KEY.words, np.uint64)
    expected_error = np.empty_like(x)
    payload = codec.encode(x, KEY, error=expected_error)
    over = x.reshape(-1).copy()
    for source, error in ((x.reshape(-1), EMPTY), (x.reshape(-1), np.empty(x.size, np.float32)), (over, over)):
        body = np.full(coder.program.nbytes(x.size), 0xAA, np.uint8)
        assert coder.encode(source, key, body, error) == x.size
        assert body.tobytes() == payload.body.tobytes()
        if error.size:
            np.testing.assert_array_equal(error.view(np.uint32), expected_error.reshape(-1).view(np.uint32))
    decoded = np.empty(x.size, np.float32)
    coder.decode(payload.body, decoded, np.float32(1), False)
    np.testing.assert_array_equal(decoded.view(np.uint32), codec.decode(payload).reshape(-1).view(np.uint32))
    sums = gaussian(x.size, seed=3)
    expected = sums.copy()
    codec.decode_add(payload, expected, 0.3)
    coder.decode(payload.body, sums, np.float32(0.3), True)
    np.testing.assert_array_equal(sums.view(np.uint32), expected.view(np.uint32))


def check_golden(name: str, functions: Functions) -> None:
    """The stored payload `name` is made of the fixed input."""
    stored, x = Payload.from_bytes((FOLDER / f"{name}.bin").read_bytes()), fixed_input().reshape(-1)
    coder = Coder(program(get_codec(GOLDEN[name])), functions)
    body = np.empty(coder.program.nbytes(x.size), np.uint8)
    assert coder.encode(x, np.array(KEY.words, np.uint64), body, EMPTY) == x.size
    assert body.tobytes() == stored.body.tobytes()


def check_all(spec: str, functions: Functions) -> None:
    """`check` of every input, which an error names."""
    for name, x in inputs():
        try:
            check(get_codec(spec), functions, x)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
