"""The ratio of a codec's sparsifier: functions that read it, set it, and list the phases of its warm-up."""

from __future__ import annotations

from collections.abc import Sequence

from psnode.codecs.base import Codec
from psnode.codecs.registry import codec_of

_RATIO = "ratio"


def ratio_of(codec: Codec) -> float | None:
    """Return the ratio of the codec's sparsifier; None if the codec has no sparsifier."""
    index = codec.spec.holder(_RATIO)
    return None if index is None else float(codec.spec.stages[index].settings[_RATIO])


def with_ratio(codec: Codec, ratio: float) -> Codec:
    """Return `codec` with the ratio of its sparsifier set to `ratio`; a codec without a ratio is returned unchanged."""
    index = codec.spec.holder(_RATIO)
    return codec if index is None else codec_of(codec.spec.changed(index, {_RATIO: repr(ratio)}))


def phases(codec: Codec, warmup: Sequence[float]) -> list[Codec]:
    """Return the codec of each phase: one codec for each ratio in `warmup`, then `codec` itself for all later steps.

    A lossless codec has no warm-up, so the result is only `codec`.
    """
    return [*(with_ratio(codec, ratio) for ratio in warmup if not codec.lossless), codec]
