"""Arguments of encode other than float32 numpy arrays, and calls without a source of random words."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import as_floats
from psnode.codecs.identity import Identity
from psnode.codecs.rng import Key
from psnode.errors import CodecSpecError, CodecTypeError, NonFiniteGradientError, PayloadError

ROOT = Path(__file__).resolve().parents[2]
KEY = Key.derive(1)
VALUES = [[1.0, -4.0, 2.0], [0.5, 0.0, -0.25]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_torch_tensors_on_the_cpu_are_coded(dtype: torch.dtype) -> None:
    tensor = torch.tensor(VALUES, dtype=dtype, requires_grad=True)
    expected = np.array(VALUES, np.float32)
    for x, y in ((tensor, expected), (tensor.T, expected.T), (tensor[:, ::2], expected[:, ::2])):
        np.testing.assert_array_equal(get_codec("identity").decode(get_codec("identity").encode(x, KEY)), y)


def test_float32_is_not_copied() -> None:
    x = np.ones((3, 4), np.float32)
    assert as_floats(x, "x") is x
    tensor = torch.ones(3, 4)
    assert np.shares_memory(as_floats(tensor, "x"), tensor.numpy())


def test_float64_is_rounded_to_the_nearest() -> None:
    """Check that 1 + 2**-24, halfway between 1 and the next float32, is rounded to 1, which is even.

    1 + 3 * 2**-25 lies three quarters of the way, and is rounded up.
    """
    found = as_floats(np.array([1 + 2.0**-24, 1 + 3 * 2.0**-25]), "x")
    assert found.tolist() == [1.0, 1 + 2.0**-23]


def test_what_is_beyond_float32_is_refused_by_index() -> None:
    with pytest.raises(NonFiniteGradientError) as caught:
        get_codec("topk").encode([1.0, -1e39, 2.0])
    assert caught.value.index == 1


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones(3, np.int32), r"x must be floats, not an array of int32: give np\.asarray\(x, np\.float32\)"),
        (torch.ones(3, dtype=torch.int64), r"x must be floats, not Tensor of torch\.int64: give x\.float\(\)"),
        (torch.ones(3, device="meta"), r"x is a tensor on meta: give x\.cpu\(\)"),
        ([[1.0], [1.0, 2.0]], "x is no array of real numbers: "),
        (None, "x must be floats, not NoneType: give np"),
    ],
)
def test_what_is_refused_names_the_call(x: object, words: str) -> None:
    with pytest.raises(CodecTypeError, match=words) as caught:
        get_codec("topk").encode(x, KEY)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_arrays_that_are_written_to_are_never_converted() -> None:
    x, codec = np.ones(3, np.float32), get_codec("identity")
    with pytest.raises(CodecTypeError, match=r"error must be a float32 numpy array, not Tensor of torch\.float32: give error"):
        codec.encode(x, KEY, error=torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(CodecTypeError, match=r"out must .*, not Tensor of torch\.float32: give out\.detach\(\)\.numpy\(\)"):
        codec.decode(codec.encode(x, KEY), torch.ones(3))  # type: ignore[arg-type]
    with pytest.raises(CodecTypeError, match="error must be a float32 numpy array, not an array of float64"):
        codec.encode(x, KEY, error=np.ones(3))  # type: ignore[arg-type]


def test_deterministic_codecs_need_no_rng() -> None:
    x = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    for spec in ("identity", "fp16", "topk", "scaledsign", "topk:ratio=0.1+fp16"):
        assert get_codec(spec).encode(x) == get_codec(spec).encode(x, KEY)


def test_without_rng_a_codec_that_draws_draws_anew() -> None:
    """Check that two calls without `rng` give different payloads: their random keys of 128 bits are equal with a probability
    of 2**-128.
    """
    x = np.random.default_rng(3).standard_normal(1000).astype(np.float32)
    assert get_codec("terngrad").encode(x) != get_codec("terngrad").encode(x)


def test_training_always_gives_a_source_of_random_words() -> None:
    """Check that every call of encode in codecs, feedback, exchange and ddp passes `rng`, since training must be repeatable."""
    lacking = []
    for path in (path for name in ("codecs", "feedback", "exchange", "ddp") for path in (ROOT / "psnode" / name).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "encode":
                text = not node.args or isinstance(node.args[0], ast.Constant)
                if not text and len(node.args) < 2 and "rng" not in {keyword.arg for keyword in node.keywords}:
                    lacking.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert lacking == []


@dataclass(frozen=True, repr=False)
class Unregistered(Identity):
    """identity under another id."""

    id = "unregistered"
    number = 255


def test_a_codec_that_is_not_registered_names_the_call() -> None:
    codec: Codec = Unregistered()
    for call in (lambda: codec.encode(VALUES), lambda: Payload.from_bytes(bytes([1, 1, 0, 255, 0, 0, 0, 0]))):
        with pytest.raises((CodecSpecError, PayloadError), match=r"psnode\.codecs\.register") as caught:
            call()
        assert "\n" not in str(caught.value)
