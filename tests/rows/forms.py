"""Subjects of the tests of formulas: psnode's codecs at settings that have a formula, and functions that run a program."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from psnode.codecs import Codec, Payload, get_codec, table
from psnode.codecs.base import Floats
from psnode.codecs.rng import Key, words
from psnode.codecs.rows.coder import Coder, Functions
from psnode.codecs.rows.formula import Program, program_of
from psnode.codecs.rows.known import formula_of
from tests.codecs.family import SHAPES, VALUES, gaussian
from tests.codecs.test__golden import FOLDER, fixed_input
from tests.codecs.test_low_bit_golden import SPECS as LOW_BIT
from tests.codecs.test_low_bit_golden import scaled_input

EMPTY = np.empty(0, np.float32)
KEY = Key.derive(1, "golden")  # the key of the golden payloads

# codecs with formulas, at default and other settings
FORMS = [
    "bf16",
    "dithered",
    "dithered:step=0.04,bucket=512",
    "dithered:step=64,bucket=1024",
    "fp16",
    "minmax",
    "minmax:bits=1",
    "natural",
    "nuqsgd",
    "nuqsgd:levels=62,norm=max",
    "onebit",
    "qsgd",
    "qsgd:levels=1,norm=max",
    "qsgd:levels=127",
    "qsgd:levels=300",
    "scaledsign",
    "sign",
    "tbq",
    "tbq:tau=0.01",
    "tbq:tau=3",
    "terngrad",
    "terngrad:clip=2.5",
]
# golden payloads of codecs with a formula: file and spec
GOLDEN = {
    name: name for name in ("bf16", "fp16", "minmax", "natural", "nuqsgd", "onebit", "qsgd", "scaledsign", "sign", "terngrad")
} | {
    "dithered": "dithered",
    "dithered-fine": "dithered:step=0.04,bucket=512",
    "minmax-1": "minmax:bits=1",
    "tbq": "tbq",
    "tbq-sparse": "tbq:tau=2",
    "terngrad-clipped": "terngrad:clip=2.5",
}


def with_formula() -> set[str]:
    """Return the ids of all codecs that have a formula at their default settings."""
    return {name for name in table.CODECS if table.is_known(name) and formula_of(get_codec(name)) is not None}


def program(codec: Codec) -> Program:
    formula = formula_of(codec)
    assert formula is not None, codec
    return program_of(formula)


def ties(n: int) -> Floats:
    """Return multiples of 1/2, with maximum 15 in each bucket; half of them lie midway between two levels of
    qsgd with norm=max.
    """
    x = (np.arange(n) % 61 - 30).astype(np.float32) / 2
    x[::512] = 15
    return x


def undecided(number: int) -> Floats:
    """Return 2100 fractions that the 16 random bits of stage `number` cannot decide: each fraction and its bits sum to 2^16
    - 1/2, in units of 2^-16.
    """
    drawn = words(np.array(KEY.words, np.uint64), number, 5 * 64).reshape(5, 64, 4).transpose(0, 2, 1).reshape(5, 256)
    sixteen = np.concatenate([drawn & 0xFFFF, drawn >> 16], axis=1).reshape(-1)[:2100]
    return ((0xFFFF - sixteen + 0.5) / 65536).astype(np.float32)


def all_ties(number: int) -> Iterator[tuple[str, Floats]]:
    """Yield rows in [0, 1] that contain only ties, for codecs that round to multiples of the maximum or to its powers of two."""
    for name, x in (("all ties", undecided(number)), ("all ties of powers", (1 + undecided(number)) / 2)):
        x[::512], x[1::512] = 1, 0
        yield name, x


def inputs(number: int) -> Iterator[tuple[str, Floats]]:
    """Yield all contract inputs that are not empty, longer inputs, and inputs that 16 random bits of stage `number` cannot
    decide.
    """
    yield "golden", fixed_input()
    yield "ties", ties(4 * 512 + 100)
    yield from all_ties(number)
    yield "sparse", np.where(gaussian(20 * 512 + 9) > 0.3, gaussian(20 * 512 + 9, seed=1), 0).astype(np.float32)
    yield "full units", gaussian(2 * 2560)
    yield "long", gaussian(64 * 512 + 77)
    yield "peaks", np.concatenate([gaussian(20480) ** power for power in (1, 9, 15)] + [gaussian(77)]).astype(np.float32)
    yield from VALUES.items()
    yield from ((f"shape {shape}", gaussian(*shape)) for shape in SHAPES if 0 not in shape)


def check(codec: Codec, functions: Functions, x: Floats) -> None:
    """Check that a program's body, error, decoded and added values equal those of the codec bit for bit."""
    coder, key = Coder(program(codec), functions), np.array(KEY.words, np.uint64)
    expected_error = np.empty_like(x)
    payload = codec.encode(x, KEY, error=expected_error)
    over = x.reshape(-1).copy()
    for source, error in ((x.reshape(-1), EMPTY), (x.reshape(-1), np.empty(x.size, np.float32)), (over, over)):
        body = np.full(coder.program.nbytes(x.size), 0xAA, np.uint8)
        assert coder.encode(source, key, body, error) == x.size
        assert body[: coder.program.length(body, x.size)].tobytes() == payload.body.tobytes()
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
    """Check that a program encodes the input of the stored payload `name` to that payload."""
    stored = Payload.from_bytes((FOLDER / f"{name}.bin").read_bytes())
    x = (scaled_input() if name in LOW_BIT else fixed_input()).reshape(-1)
    coder = Coder(program(get_codec(GOLDEN[name])), functions)
    body = np.empty(coder.program.nbytes(x.size), np.uint8)
    assert coder.encode(x, np.array(KEY.words, np.uint64), body, EMPTY) == x.size
    assert body[: coder.program.length(body, x.size)].tobytes() == stored.body.tobytes()


def check_all(spec: str, functions: Functions) -> None:
    """Run `check` on every input; an error names the input."""
    codec = get_codec(spec)
    for name, x in inputs(table.number_of(codec.id)):
        try:
            check(codec, functions, x)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
