"""Theoretical limits: the bounds that hold for every input, and the rate-distortion function of a source.

For any codec with R bits per coordinate there are inputs x whose squared error is at least alpha ||x||^2, where alpha = 4^-R.
If the codec is unbiased, the error is at least omega ||x||^2, where omega = 1 / (4^R - 1). Gaussian vectors are such inputs;
other inputs may have smaller errors. R(D) of a source of independent values is computed from the source's histogram by Blahut's
algorithm.

Source: Safaryan, Shulgin, Richtarik, "Uncertainty principle for communication compression in distributed and federated learning
and the search for an optimal compressor", Information and Inference 2022; Blahut, "Computation of channel capacity and
rate-distortion functions", IEEE Trans. IT 1972.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Floats

_CELLS = 401
_KNEE = 0.1  # in root mean squares: below the knee cells have equal widths, above it geometric widths
_SLOPES = 40
_MOST_STEPS = 200
_CLOSE = 5e-4  # the iteration stops when Blahut's two bounds differ by at most this many bits
_DEEPEST = 4.0**-6


def least_bits(error: float, unbiased: bool) -> float:
    """Return the fewest bits per coordinate with which a codec's relative error can be at most `error` on every input.

    This inverts the bound omega if `unbiased`, otherwise the bound alpha.
    """
    return 0.5 * math.log2(1 + 1 / error) if unbiased else max(0.0, -0.5 * math.log2(error))


def shrunk(error: float, unbiased: bool) -> float:
    """Return the relative error after the decoded values are scaled by the best constant factor.

    This is omega / (1 + omega) if `unbiased`, otherwise alpha, where omega or alpha is `error`.
    """
    return error / (1 + error) if unbiased else error


class RateDistortion(NamedTuple):
    """R(D), the rate-distortion function of a source, at some points.

    `bits`: bits per coordinate, ascending. `errors`: the squared errors relative to the source's energy.
    """

    bits: Float64s
    errors: Float64s

    def bits_at(self, error: float) -> float:
        """Return R(D) at D = `error`. Between and beyond the known points, bits are interpolated linearly in log D."""
        if error >= 1:
            return 0.0
        logs = np.log2(self.errors)
        k = int(np.clip(np.searchsorted(-logs, -math.log2(error)), 1, logs.size - 1))
        slope = (self.bits[k] - self.bits[k - 1]) / (logs[k] - logs[k - 1])
        return max(0.0, float(self.bits[k] + slope * (math.log2(error) - logs[k])))


def histogram(x: Floats, cells: int = _CELLS) -> tuple[Float64s, Float64s]:
    """Return the means and shares of the non-empty cells of a histogram of `x`, scaled to root mean square 1.

    Exact zeros have a cell of their own.
    """
    values = x.reshape(-1).astype(np.float64)
    values /= math.sqrt(float(np.mean(values**2))) or 1.0
    bent = np.arcsinh(values / _KNEE)
    half = (cells - 1) / 2
    numbers = np.rint(bent * (half / max(float(np.abs(bent).max()), 1e-9)) + half).astype(np.int64)
    numbers[values == 0] = cells
    counts = np.bincount(numbers, minlength=cells + 1)
    sums = np.bincount(numbers, weights=values, minlength=cells + 1)
    filled = counts > 0
    return sums[filled] / counts[filled], counts[filled] / values.size


def curve(x: Floats) -> RateDistortion:
    """Return R(D) of a source of independent values with the distribution of `x`, down to about D = 4^-6 of the energy."""
    points, shares = histogram(x)
    energy = float(shares @ points**2)
    distances = (points[:, None] - points[None, :]) ** 2
    bits, errors = [0.0], [1.0]
    output = np.full(points.size, 1 / points.size)
    shallowest = 0.5 / max(float(np.max(points**2)), 1.0)  # at flatter slopes the rate is 0: not even the largest value is sent
    for slope in np.geomspace(shallowest, 0.5 / _DEEPEST, _SLOPES):
        kernel = np.exp(-slope * distances)
        output = _converged(kernel, shares, 0.9 * output + 0.1 * shares)  # every value regains a positive probability
        norms = kernel @ output
        error = float((shares / norms) @ ((kernel * distances) @ output))
        rate = -(slope * error + float(shares @ np.log(norms))) / math.log(2)
        if rate > bits[-1] and error / energy < errors[-1]:
            bits.append(rate)
            errors.append(error / energy)
    return RateDistortion(np.array(bits), np.array(errors))


def _converged(kernel: Float64s, shares: Float64s, output: Float64s) -> Float64s:
    """Return the distribution of the decoded values to which Blahut's iteration converges from `output`."""
    for _ in range(_MOST_STEPS):
        growth: Float64s = (shares / (kernel @ output)) @ kernel
        output = output * growth
        if math.log2(float(growth.max())) - float(output @ np.log2(np.maximum(growth, 1e-300))) < _CLOSE:
            break
    normalised: Float64s = output / output.sum()
    return normalised
