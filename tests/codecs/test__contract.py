"""Contract of every registered codec: interface, shapes, values, determinism, errors."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.base import NOTHING
from psnode.codecs.registry import decoder_of
from psnode.codecs.rng import Key
from psnode.codecs.sinks import Added, InnerProducts, Subtracted
from psnode.codecs.sources import Accumulated, Copied, Difference, Values
from psnode.errors import CodecTypeError, CodecValueError, NonFiniteGradientError, NonFinitePartError, PayloadError
from tests.codecs.family import FILES, SHAPES, VALUES, Floats, contractive_forms, forms, gaussian

ROOT = Path(__file__).resolve().parents[2]
KEY = Key.derive(7, "test")
PARTS = 6  # kernels are compiled again for the plain processor, which takes seconds per codec


@pytest.fixture(params=forms(), scope="module")
def codec(request: pytest.FixtureRequest) -> Codec:
    return get_codec(request.param)


@pytest.fixture(params=[*forms(), *contractive_forms()], scope="module")
def form(request: pytest.FixtureRequest) -> Codec:
    """Return a codec or a contractive form."""
    return get_codec(request.param)


class Counting:
    """A random generator that records its draws."""

    def __init__(self) -> None:
        self.draws: list[tuple[int, int, type]] = []

    def integers(self, low: int, *, size: int, dtype: type) -> np.ndarray:
        self.draws.append((low, size, dtype))
        return np.arange(size, dtype=dtype)


def test_repr_is_a_spec_that_makes_an_equal_codec(form: Codec) -> None:
    again = get_codec(repr(form))
    assert again == form
    assert hash(again) == hash(form)
    assert repr(again) == repr(form)


def test_the_spec_of_the_contractive_form_makes_it(codec: Codec) -> None:
    assert get_codec(f"contractive({codec!r})") == codec.contractive()


def test_contractive_form_is_its_own_contractive_form(form: Codec) -> None:
    assert form.contractive().contractive() == form.contractive()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_shape_comes_back(form: Codec, shape: tuple[int, ...]) -> None:
    x = gaussian(*shape)
    payload = form.encode(x, KEY)
    decoded = form.decode(payload)
    assert (decoded.shape, decoded.dtype) == (shape, np.float32)
    assert payload.shape == shape
    assert payload.nbytes == len(payload.to_bytes()) <= form.max_nbytes(shape)
    assert payload.stages == form.stages
    assert np.isfinite(decoded).all()
    if form.lossless:
        np.testing.assert_array_equal(decoded, x)


@pytest.mark.parametrize("name", VALUES)
def test_every_finite_value_gives_finite_values_and_the_stated_error(form: Codec, name: str) -> None:
    x = VALUES[name]
    before = x.copy()
    error = np.empty_like(x)
    payload = form.encode(x, KEY, error=error)
    np.testing.assert_array_equal(x.view(np.uint32), before.view(np.uint32))
    decoded = form.decode(payload)
    assert np.isfinite(decoded).all()
    np.testing.assert_allclose(error, x.astype(np.float64) - decoded, rtol=1e-6, atol=np.abs(x).max() * 2e-7 + 1e-44)


def test_bytes_are_a_function_of_input_configuration_and_two_words(form: Codec) -> None:
    x, source = gaussian(40, 30), Counting()
    payload = form.encode(x, source)
    assert source.draws == [(2**64, 2, np.uint64)]
    assert get_codec(repr(form)).encode(x.copy(), Counting()) == payload
    assert form.encode(np.zeros(0, np.float32), source).size == 0
    assert len(source.draws) == 2


def test_any_array_layout_gives_the_same_bytes(form: Codec) -> None:
    x = gaussian(24, 36)
    payload = form.encode(x, KEY)
    fortran, strided, frozen = np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2], x.copy()
    frozen.flags.writeable = False
    for other in (fortran, strided, frozen):
        assert form.encode(other, KEY) == payload
        error = np.full((36, 48), np.nan, np.float32)[::-1, ::2].T
        form.encode(other, KEY, error=error)
        expected = np.empty_like(x)
        form.encode(x, KEY, error=expected)
        np.testing.assert_array_equal(error, expected)


def test_parts_are_added_and_coded_as_if_they_had_been_one_array(form: Codec) -> None:
    """Check that encoding parts gives the payload of their sum. A codec that looks at the newest part is compared with the
    same addition in one part.
    """
    x, residual = gaussian(1200), gaussian(1201)[1:].reshape(40, 30)
    parts = [(0, x[:100]), (100, x[100:613]), (700, x[700:])]
    total = residual.copy().reshape(-1)
    total[:613] += x[:613]
    total[700:] += x[700:]
    expected = np.empty_like(residual)
    if form.traits.newest:
        whole = x.copy()
        whole[613:700] = 0
        expected[:] = residual
        payload = form.encode(Accumulated([(0, whole)], expected), KEY, sink=Subtracted(expected))
        np.testing.assert_array_equal(expected, total.reshape(residual.shape) - form.decode(payload))
    else:
        payload = form.encode(total.reshape(residual.shape), KEY, error=expected)
    mine = residual.copy()
    assert form.encode(Accumulated(parts, mine), KEY, sink=Subtracted(mine)) == payload
    np.testing.assert_array_equal(mine, expected)
    alone = residual.copy()
    assert form.encode(Accumulated(parts, alone), KEY) == payload
    np.testing.assert_array_equal(alone.reshape(-1), total)
    empty = np.zeros((0, 3), np.float32)
    assert form.encode(Accumulated([], empty), KEY) == form.encode(empty, KEY)


@pytest.mark.parametrize(("index", "value"), [(0, np.nan), (300, np.inf), (45_000, -np.inf), (49_999, np.nan)])
def test_a_part_that_is_not_finite_is_named_and_leaves_the_target_as_it_was(form: Codec, index: int, value: float) -> None:
    x, residual = gaussian(50_000), gaussian(50_001)[1:]
    x[index] = value
    before = residual.copy()
    for sink in (Subtracted(residual), NOTHING):
        with pytest.raises(NonFinitePartError) as caught:
            form.encode(Accumulated([(0, x[:7000]), (7000, x[7000:44_000]), (44_500, x[44_500:])], residual), KEY, sink=sink)
        assert caught.value.index == index
        np.testing.assert_allclose(residual, before, rtol=0, atol=4e-6)


def test_huge_values_beside_a_nan_leave_nothing_behind(form: Codec) -> None:
    x, residual = gaussian(50_000), gaussian(50_001)[1:]
    x[7], x[99], x[45_000] = 1e30, 1.2345e24, np.nan
    before = residual.copy()
    with pytest.raises(NonFinitePartError):
        form.encode(Accumulated([(0, x)], residual), KEY, sink=Subtracted(residual))
    assert (np.abs(residual) <= 2 * np.abs(before)).all()


def test_parts_that_are_none_are_refused() -> None:
    codec, x, residual = get_codec("topk"), gaussian(1000), gaussian(1000)
    bad = [
        [(0, x[::4])],
        [(0, x.astype(np.float64))],
        [(0, x.reshape(10, 100))],
        [(1, x)],
        [(-1, x[:10])],
        [(0, x[:10]), (9, x[10:20])],
        [(20, x[:10]), (0, x[10:20])],
    ]
    for parts in bad:
        with pytest.raises((CodecTypeError, CodecValueError)):
            codec.encode(Accumulated(parts, residual), KEY)
    np.testing.assert_array_equal(residual, gaussian(1000))
    with pytest.raises(CodecValueError, match="contiguous"):
        codec.encode(Accumulated([], np.zeros(1000, np.float32)[::2]), KEY)
    with pytest.raises(CodecValueError, match="contiguous"):
        codec.encode(x[:500], KEY, sink=Added(np.zeros(1000, np.float32)[::2]))
    with pytest.raises(CodecValueError, match="they must be equal"):
        codec.encode(x, KEY, sink=Added(np.zeros(999, np.float32)))
    with pytest.raises(CodecTypeError, match="error goes with an array alone"):
        codec.encode(Accumulated([], residual), KEY, error=residual)
    with pytest.raises(CodecTypeError, match="error goes with an array alone"):
        codec.encode(x, KEY, sink=Subtracted(residual), error=residual)


def test_a_change_is_the_difference_coded_and_added(form: Codec) -> None:
    x, y = gaussian(40, 30), gaussian(1201)[1:].reshape(40, 30)
    payload = form.encode(x - y, KEY)
    moved = y.copy()
    form.decode_add(payload, moved)
    for scratch in (None, np.empty(1300, np.float32)):
        mine = y.copy()
        assert form.encode(Difference(x, mine, scratch), KEY, sink=Added(mine)) == payload
        np.testing.assert_array_equal(mine, moved)


def test_a_sink_is_served_whatever_the_source(form: Codec) -> None:
    x, y = gaussian(40, 30), gaussian(1201)[1:].reshape(40, 30)
    sources = {
        "values": lambda: (Values(x), x),
        "accumulated": lambda: (Accumulated([(0, x.reshape(-1))], y.copy()), x + y),
        "copied": lambda: (Copied(x, np.empty_like(x)), x),
        "difference": lambda: (Difference(x, y), x - y),
    }
    for name, make in sources.items():
        source, whole = make()
        payload = form.encode(make()[0] if form.traits.newest else whole, KEY)
        decoded = form.decode(payload)
        for sink, sign in ((Subtracted(y.copy()), -1), (Added(y.copy()), 1)):
            assert form.encode(source, KEY, sink=sink) == payload, name
            expected = y + np.float32(sign) * decoded
            np.testing.assert_array_equal(sink.target, expected, err_msg=name)
            source = make()[0]
        measured = InnerProducts()
        assert form.encode(source, KEY, sink=measured) == payload, name
        exact = np.vdot(whole.astype(float), decoded.astype(float)), np.vdot(decoded.astype(float), decoded.astype(float))
        np.testing.assert_allclose((measured.xy, measured.yy), exact, rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_error_may_be_written_over_the_input(form: Codec) -> None:
    x = gaussian(40, 30)
    error = np.empty_like(x)
    payload = form.encode(x, KEY, error=error)
    over = x.copy()
    assert form.encode(over, KEY, error=over) == payload
    np.testing.assert_array_equal(over, error)
    assert form.encode(x, KEY) == payload
    overlapping = np.zeros((41, 30), np.float32)
    overlapping[1:] = x
    assert form.encode(overlapping[1:], KEY, error=overlapping[:-1]) == payload
    np.testing.assert_array_equal(overlapping[:-1], error)


def test_a_payload_can_be_written_into_a_buffer_of_the_callers(form: Codec) -> None:
    x = gaussian(40, 30)
    buffer = np.full(form.max_nbytes(x.shape) + 8, 0xAA, np.uint8)
    payload = form.encode(x, KEY, out=buffer[4:])
    assert payload == form.encode(x, KEY)
    assert np.shares_memory(payload.data, buffer)
    assert set(buffer[:4].tolist()) == {0xAA}
    assert set(buffer[-4:].tolist()) == {0xAA}
    assert not payload.data.flags.writeable
    np.testing.assert_array_equal(form.decode(Payload.from_bytes(payload.to_bytes())), form.decode(payload))
    with pytest.raises(CodecValueError, match="needs max_nbytes"):
        form.encode(x, KEY, out=buffer[: form.max_nbytes(x.shape) - 1])


def test_decode_add_adds_what_decode_gives(form: Codec) -> None:
    x = gaussian(33, 47)
    payload = form.encode(x, KEY)
    decoded = form.decode(payload)
    for weight in (1.0, -1.0, 0.25, 1 / 3, 0.0):
        start = gaussian(33, 47, seed=2)
        sums = start.copy()
        form.decode_add(payload, sums, weight)
        np.testing.assert_array_equal(sums, start + np.float32(weight) * decoded)
        flat = start.reshape(-1).copy()
        form.decode_add(payload, flat, weight)
        np.testing.assert_array_equal(flat, sums.reshape(-1))


def test_decode_overwrites_an_array_of_the_callers(form: Codec) -> None:
    payload = form.encode(gaussian(33, 47), KEY)
    decoded = form.decode(payload)
    for shape in ((33, 47), (33 * 47,)):
        out = np.full(shape, np.nan, np.float32)
        assert form.decode(payload, out) is out
        np.testing.assert_array_equal(out.reshape(33, 47), decoded)


def test_another_instance_decodes_the_bytes_alone(form: Codec) -> None:
    payload = form.encode(gaussian(40, 30), KEY)
    bare = decoder_of(Payload.from_bytes(payload.to_bytes()))
    np.testing.assert_array_equal(bare.decode(payload), form.decode(payload))


def test_support_holds_every_coordinate_that_is_not_zero(form: Codec) -> None:
    payload = form.encode(gaussian(40, 30), KEY)
    support = form.support(payload)
    assert support.dtype == np.int64
    assert (np.diff(support) > 0).all()
    assert np.isin(np.flatnonzero(form.decode(payload)), support).all()
    if not form.sparse:
        assert support.size == 1200


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 530, 1199])
def test_a_value_that_is_not_finite_is_refused_by_index(form: Codec, value: float, index: int) -> None:
    x = gaussian(40, 30)
    x.reshape(-1)[index] = value
    with pytest.raises(NonFiniteGradientError) as caught:
        form.encode(x, KEY)
    assert caught.value.index == index


def test_wrong_arguments_are_refused(codec: Codec) -> None:
    x = gaussian(6, 5)
    payload = codec.encode(x, KEY)
    for wrong in (x.view(np.int32), x > 0, x.astype(complex), x.astype(str), [["1"]], [[1], [1, 2]], None, "x", {}):
        with pytest.raises(CodecTypeError):
            codec.encode(wrong, KEY)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        codec.encode(x, KEY, error=x.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(CodecValueError):
        codec.encode(x, KEY, error=np.empty(30, np.float32))
    with pytest.raises(CodecValueError):
        codec.encode(np.zeros((1,) * 9, np.float32), KEY)
    with pytest.raises(CodecTypeError):
        codec.decode(payload.to_bytes())  # type: ignore[arg-type]
    for out in (np.zeros((5, 6), np.float32), np.zeros(29, np.float32), np.zeros((12, 5), np.float32)[::2]):
        with pytest.raises(CodecValueError):
            codec.decode(payload, out)
        with pytest.raises(ValueError, match="out"):
            codec.decode_add(payload, out)
    with pytest.raises(CodecTypeError):
        codec.decode_add(payload, np.zeros((6, 5)))  # type: ignore[arg-type]


def test_other_arrays_are_coded_as_their_float32(codec: Codec) -> None:
    x = gaussian(6, 5).astype(np.float16).astype(np.float32)  # all of the types below hold these values exactly
    expected = codec.encode(x, KEY).to_bytes()
    for same in (x.astype(np.float64), x.astype(np.float16), x.astype(">f4"), x.tolist(), np.asfortranarray(x)):
        assert codec.encode(same, KEY).to_bytes() == expected
    error = np.empty_like(x)
    payload = codec.encode(x.astype(np.float64), KEY, error=error)
    assert payload.to_bytes() == expected
    np.testing.assert_array_equal(error, x - codec.decode(payload))


def test_the_payload_of_another_codec_is_refused(codec: Codec) -> None:
    other = get_codec("fp16" if codec.stages == ("identity",) else "identity")
    with pytest.raises(PayloadError, match="was handed to"):
        codec.decode(other.encode(gaussian(5), KEY))


def test_only_linear_codecs_merge(codec: Codec) -> None:
    parts = [gaussian(9, 8, seed=seed) for seed in range(3)]
    payloads = [codec.encode(part, KEY) for part in parts]
    if codec.linear:
        merged = codec.decode(codec.merge(payloads))
        np.testing.assert_allclose(merged, codec.decode(codec.encode(sum(parts), KEY)), rtol=1e-5, atol=1e-5)
    else:
        with pytest.raises(Exception, match="not linear"):
            codec.merge(payloads)


DECODER = """
import hashlib, json, sys
from pathlib import Path
from psnode.codecs import Payload
from psnode.codecs.registry import decoder_of
from psnode.codecs.registry import load_codec

for spec in sys.argv[2:]:
    load_codec(spec)
digests = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    payload = Payload.from_bytes(path.read_bytes())
    digests[path.name] = hashlib.sha256(decoder_of(payload).decode(payload).tobytes()).hexdigest()
print(json.dumps(digests))
"""


def decode_elsewhere(folder: Path, **environment: str) -> dict[str, str]:
    """Decode the files in `folder` in a new process, and return the digests of the arrays."""
    command = [sys.executable, "-c", DECODER, str(folder), *FILES]
    done = subprocess.run(
        command, env=os.environ | environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    return dict(json.loads(done.stdout))


def expected_digests(folder: Path, specs: list[str], x: Floats) -> dict[str, str]:
    found = {}
    for number, spec in enumerate(specs):
        codec = get_codec(spec)
        payload = codec.encode(x, KEY)
        (folder / str(number)).write_bytes(payload.to_bytes())
        found[str(number)] = hashlib.sha256(codec.decode(payload).tobytes()).hexdigest()
    return found


def test_a_process_with_another_hash_seed_decodes_the_same_values(tmp_path: Path) -> None:
    specs = [*forms(), *contractive_forms()]
    expected = expected_digests(tmp_path, specs, gaussian(40, 60))
    assert decode_elsewhere(tmp_path, PYTHONHASHSEED="12345", PYTHONPATH=str(ROOT)) == expected


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(PARTS))
def test_a_processor_without_vector_instructions_decodes_the_same_values(tmp_path: Path, part: int) -> None:
    expected = expected_digests(tmp_path, forms()[part::PARTS], gaussian(40, 60))
    assert decode_elsewhere(tmp_path, NUMBA_CPU_NAME="generic", NUMBA_CPU_FEATURES="", PYTHONPATH=str(ROOT)) == expected
