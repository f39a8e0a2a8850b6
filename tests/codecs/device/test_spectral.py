"""Spectral ATOMO on a device (here torch's CPU), compared with the codec on the host and with theory.

Seeds are fixed, so a test passes always or never. Each bound of 4 standard errors would fail a correct program for a share of
6e-5 of the seeds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.device.spectral import SpectralEncoder, svd_of
from psnode.codecs.lowrank import randomised
from psnode.codecs.payload import assemble
from psnode.codecs.rng import Key
from psnode.codecs.svd import Svd

CPU = torch.device("cpu")
KEY = Key.derive(1, "spectral")
SPECS = [
    *("svd", "svd:rank=1", "svd:rank=2.5", "svd:sample=false", "svd:rank=4.5,sample=false", "svd:method=deflated"),
    *("svd:method=deflated,sample=false", "svd:method=randomised", "svd:method=randomised,cover=true"),
    *("svd+qsgd:levels=127", "svd+fp16", "svd:rank=2,sample=false+qsgd:levels=7+ans"),
]
SHAPES = [(), (1,), (7,), (300,), (0,), (3, 0, 2), (1, 1), (1, 500), (6, 6), (30, 20), (20, 30), (16, 8, 3, 3), (3, 3, 8, 16)]
SHAPES += [(2, 3, 4, 5, 6), (90, 200), (3000, 12)]


def gaussian(*shape: int, seed: int = 0) -> Floats:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape), np.float32)


def decays(m: int = 24, n: int = 40, ratio: float = 0.8) -> Floats:
    """Return a matrix with singular values ratio^i, far enough apart that equal draws select equal terms."""
    rng = np.random.default_rng(m)
    short = min(m, n)
    u, v = (np.linalg.qr(rng.standard_normal((side, short)))[0] for side in (m, n))
    return np.asarray((u * ratio ** np.arange(short)) @ v.T, np.float32)


def on_device(codec: Codec, x: Floats, key: Key = KEY) -> tuple[Payload, Floats]:
    """Return the payload of x, and the coding error, which the encoder writes over a copy of x."""
    encoder = SpectralEncoder(codec, x.shape, CPU)  # type: ignore[arg-type]
    values = torch.from_numpy(x.reshape(-1).copy())
    assert encoder.padded == x.size

    def write(words: Words, body: Bytes) -> int:
        encoder.encode(values, words, values)
        assert encoder.is_finite
        return encoder.take(body)

    payload = assemble(codec, x.shape, key, write)
    return Payload.from_bytes(payload.to_bytes()), values.numpy().reshape(x.shape)


def distance(a: Floats, b: Floats) -> float:
    """Return ||a - b|| / ||b||, or ||a - b|| if b is 0."""
    difference, length = np.linalg.norm(a.astype(float) - b.astype(float)), np.linalg.norm(b.astype(float))
    return float(difference / length) if length else float(difference)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_is_coded_as_on_the_host_and_the_error_is_what_the_payload_lacks(shape: tuple[int, ...], spec: str) -> None:
    codec = get_codec(spec)
    x = decays(*shape) if len(shape) == 2 and min(shape) > 1 else gaussian(*shape)
    payload, error = on_device(codec, x)
    decoded, host = codec.decode(payload), codec.encode(x, KEY)
    assert payload.nbytes <= codec.max_nbytes(shape)
    assert error.tobytes() == (x - decoded).tobytes() if x.size else not payload.body.size
    if "+" not in spec:  # after svd, a value midway between two levels may go to either
        assert payload.nbytes == host.nbytes
        assert payload.body[:8].tobytes() == host.body[:8].tobytes()
        assert distance(decoded, codec.decode(host)) <= 1e-5


@pytest.mark.parametrize("spec", ["svd", "svd:sample=false", "svd:method=randomised,cover=true", "svd+qsgd"])
def test_of_a_zero_matrix_there_are_no_terms(spec: str) -> None:
    x = np.zeros((40, 60), np.float32)
    x[::2] = -0.0
    payload, error = on_device(get_codec(spec), x)
    assert payload.body.tobytes() == bytes([4, 0, 0, 0, 1, 0, 0, 0])
    assert error.tobytes() == x.tobytes()


@pytest.mark.parametrize("spec", ["svd", "svd:method=randomised", "svd:method=randomised,cover=true"])
@pytest.mark.parametrize("shape", [(64, 90), (90, 64)])
def test_dead_rows_and_columns_stay_exactly_zero(shape: tuple[int, int], spec: str) -> None:
    x = gaussian(*shape)
    x[::3], x[:, ::2], x[1] = 0, 0, -0.0
    for seed in range(3):
        decoded = get_codec(spec).decode(on_device(get_codec(spec), x, Key.derive(seed))[0])
        assert not decoded[::3].any() and not decoded[:, ::2].any() and not decoded[1].any()
        assert decoded.any()


@pytest.mark.parametrize("spec", ["svd:rank=2", "svd:method=randomised", "svd:method=randomised,cover=true"])
@pytest.mark.parametrize("scale", [1e-41, 1e-30, 1e-10, 1e10, 1e30, 1e37])
def test_scale_changes_nothing_but_the_scale(scale: float, spec: str) -> None:
    codec, x = get_codec(spec), decays(30, 50)
    reference = codec.decode(on_device(codec, x)[0]).astype(float)
    found = codec.decode(on_device(codec, (x.astype(float) * scale).astype(np.float32))[0]).astype(float) / scale
    assert np.abs(found - reference).max() <= (1e-2 if scale < 1e-37 else 1e-5) * np.abs(reference).max()


@pytest.mark.filterwarnings("ignore:overflow encountered in subtract")  # x - decoded may overflow, as on the host
@pytest.mark.parametrize("spec", ["svd", "svd:sample=false", "svd:method=randomised,cover=true"])
@pytest.mark.parametrize("kind", ["signs", "diagonal", "equal"])
def test_the_largest_floats_decode_to_finite_ones(kind: str, spec: str) -> None:
    x = {"signs": np.sign(gaussian(40, 60)), "diagonal": np.eye(40, 60), "equal": np.ones((40, 60))}[kind]
    x = np.asarray(x * np.finfo(np.float32).max, np.float32)
    codec = get_codec(spec)
    for seed in range(3):
        payload, error = on_device(codec, x, Key.derive(seed))
        decoded = codec.decode(payload)
        assert np.isfinite(decoded).all()
        assert error.tobytes() == (x - decoded).tobytes()
        if kind == "equal":
            assert np.abs(decoded / np.finfo(np.float32).max - 1).max() <= 1e-5


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("shape", [(5,), (40, 60), (60, 40)])
def test_what_is_not_finite_is_told_and_left_as_it_was(shape: tuple[int, ...], value: float) -> None:
    x = gaussian(*shape)
    x.flat[3] = value
    encoder, values = SpectralEncoder(Svd(), shape, CPU), torch.from_numpy(x.reshape(-1).copy())
    words = np.array(KEY.words, np.uint64)
    encoder.encode(values, words, values)
    assert not encoder.is_finite
    assert values.numpy().tobytes() == x.tobytes()
    values[3] = 1
    encoder.encode(values, words)
    assert encoder.is_finite


def test_the_key_decides_and_the_array_is_left_alone_without_an_error() -> None:
    x = gaussian(48, 16, 3, 3)
    bodies = [on_device(Svd(), x, Key.derive(seed))[0].to_bytes() for seed in (5, 5, 6)]
    assert bodies[0] == bodies[1] != bodies[2]
    encoder, values, error = SpectralEncoder(Svd(), x.shape, CPU), torch.from_numpy(x.reshape(-1).copy()), torch.ones(x.size)
    encoder.encode(values, np.array(Key.derive(5).words, np.uint64), error)
    assert values.numpy().tobytes() == x.tobytes()
    assert error.numpy().tobytes() == on_device(Svd(), x, Key.derive(5))[1].tobytes()
    out = np.full(Svd().max_nbytes(x.shape) + 9, 7, np.uint8)
    used = encoder.take(out)
    assert bodies[0].endswith(out[:used].tobytes()) and (out[used:] == 7).all()


def test_a_host_draws_the_same_subspace() -> None:
    """Check that host and device draw the same subspace for the same key: for white noise they then decode to the same
    values. Under another key the values differ.
    """
    x, codec = gaussian(60, 90), get_codec("svd:method=randomised")
    assert distance(codec.decode(on_device(codec, x)[0]), codec.decode(codec.encode(x, KEY))) <= 1e-4
    assert distance(codec.decode(on_device(codec, x)[0]), codec.decode(codec.encode(x, Key.derive(9)))) > 0.1


def test_only_svd_and_chains_behind_it_are_spectral() -> None:
    assert svd_of(get_codec("svd:rank=2")) == Svd(rank=2)
    assert svd_of(get_codec("svd:rank=2+qsgd+ans")) == Svd(rank=2)
    assert [svd_of(get_codec(spec)) for spec in ("qsgd", "topk+qsgd", "qsgd+ans", "entrywise")] == [None] * 4
    assert svd_of(get_codec("svd+qsgd").contractive()) is None


# values that are copied to the host


class Crossings:
    """Counts the bytes of tensors that become host arrays or Python numbers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nbytes = 0
        for name in ("numpy", "tolist", "item", "__bool__", "__int__", "__float__", "__array__"):
            monkeypatch.setattr(torch.Tensor, name, self._counting(getattr(torch.Tensor, name)))

    def _counting(self, made: Any) -> Any:
        def counted(tensor: torch.Tensor, *args: Any, **options: Any) -> Any:
            self.nbytes += tensor.nbytes
            return made(tensor, *args, **options)

        return counted


@pytest.mark.parametrize("spec", ["svd", "svd:method=deflated", "svd:sample=false", "svd:method=randomised,cover=true"])
@pytest.mark.parametrize("shape", [(128, 700), (700, 128), (64, 32, 3, 3)])
def test_factors_and_singular_values_alone_come_to_the_host(
    shape: tuple[int, ...], spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, x = get_codec(spec), gaussian(*shape)
    encoder, values = SpectralEncoder(codec, shape, CPU), torch.from_numpy(x.reshape(-1).copy())  # type: ignore[arg-type]
    crossings, out = Crossings(monkeypatch), np.zeros(codec.max_nbytes(shape), np.uint8)
    encoder.encode(values, np.array(KEY.words, np.uint64), values)
    used = encoder.take(out)
    short = min(shape[0], math.prod(shape[1:]))
    assert 0.98 * used <= crossings.nbytes <= 1.02 * used + 8 * short
    assert crossings.nbytes < 0.3 * x.nbytes


# the distribution of decoded arrays


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("spec", "x"),
    [
        ("svd:rank=1", decays()),
        ("svd:rank=2.5", decays(40, 24)),
        ("svd:rank=3,method=deflated", gaussian(12, 4, 3, 3)),
        ("svd:rank=3,method=randomised,cover=true", decays(ratio=0.5)),
        ("svd:rank=2+qsgd:levels=127", decays()),
    ],
)
def test_the_mean_of_decodes_is_x(spec: str, x: Floats) -> None:
    """Check over 1500 keys that the mean error is 0, in sums over classes of coordinates (largest, middle, smallest, a row,
    a column, all) and along singular pairs.
    """
    codec = get_codec(spec)
    matrix = x.reshape(len(x), -1).astype(float)
    u, _, vt = np.linalg.svd(matrix, full_matrices=False)
    ranks, signs, third = np.abs(matrix).ravel().argsort().argsort().reshape(matrix.shape), np.sign(matrix), matrix.size // 3
    tests = [signs * (ranks < third), signs * (ranks >= 2 * third), signs * ((ranks >= third) & (ranks < 2 * third)), signs]
    row, column = np.zeros_like(matrix), np.zeros_like(matrix)
    row[3], column[:, 7] = signs[3], signs[:, 7]
    along = np.array([*tests, row, column, *(np.outer(u[:, i], vt[i]) for i in range(len(vt)))]).reshape(-1, matrix.size)
    samples = np.array([along @ -on_device(codec, x, Key.derive(seed))[1].ravel().astype(float) for seed in range(1500)])
    deviation = samples.std(axis=0, ddof=1) / math.sqrt(len(samples))
    assert np.all(np.abs(samples.mean(axis=0)) <= 4 * deviation + 1e-6 * np.abs(x).max())


def theoretical_omega(x: Floats, budget: float) -> float:
    """Return the theoretical omega, (sum lambda^2 / p - ||x||^2) / ||x||^2, for the singular values lambda of x. The
    probabilities are p = min(1, c lambda), where bisection finds the c at which they sum to `budget`.
    """
    lam = np.linalg.svd(x.astype(np.float64), compute_uv=False)
    low, high = 0.0, 1 / lam[-1]
    for _ in range(200):
        c = (low + high) / 2
        low, high = (c, high) if np.minimum(1, c * lam).sum() < budget else (low, c)
    return float(np.sum(lam**2 / np.minimum(1, high * lam)) / np.sum(lam**2) - 1)


@pytest.mark.long
@pytest.mark.parametrize(
    ("rank", "method", "x"), [(1, "exact", decays()), (2.5, "exact", decays(40, 24)), (3, "deflated", gaussian(100, 120))]
)
def test_the_variance_is_atomo_s_optimum(rank: float, method: Any, x: Floats) -> None:
    codec, theory = Svd(rank=rank, method=method), theoretical_omega(x, rank)
    count = 300 if x.size > 2000 else 1500
    squares = [np.sum(on_device(codec, x, Key.derive(seed))[1].astype(float) ** 2) for seed in range(count)]
    assert np.mean(squares) / np.sum(x.astype(float) ** 2) == pytest.approx(theory, rel=0.05)
    assert codec.omega(x) == pytest.approx(theory, rel=0.05)


@pytest.mark.parametrize("shape", [(60, 200), (200, 60)])
def test_the_whole_is_the_sum_of_the_largest_terms(shape: tuple[int, int]) -> None:
    x = decays(*shape, ratio=0.9)
    u, lam, vt = np.linalg.svd(x.astype(float), full_matrices=False)
    for rank in (1, 5):
        best = (u[:, :rank] * lam[:rank]) @ vt[:rank]
        assert distance(Svd(rank=rank).decode(on_device(Svd(rank=rank, sample=False), x)[0]), best) <= 1e-6


def test_the_subspace_has_more_columns_than_terms_are_sent() -> None:
    """Check that the randomised method equals the exact one, whatever is drawn, if the matrix's short side fits into the
    subspace.
    """
    x = gaussian(3 + randomised.OVERSAMPLING, 400)
    codec = get_codec("svd:method=randomised,sample=false")
    exact = get_codec("svd:sample=false")
    assert on_device(codec, x)[0] == on_device(exact, x)[0]
