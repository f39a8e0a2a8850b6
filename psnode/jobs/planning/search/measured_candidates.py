"""Candidates of a search, measured on this host: the scheme's own codecs, and codecs that may replace them in a group.

In a plan for one scheme, every coded segment has the scheme's feedback and downlink. So besides the scheme's own codecs there
are at most two candidates: `dense`, which sends a group uncoded, and bf16 with the scheme's feedback and downlink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from psnode.codecs.registry import known_codec
from psnode.codecs.rng import Key
from psnode.config import Config, settings
from psnode.config.effects import CLIPPED, MAJORITY
from psnode.config.resolve import resolve
from psnode.config.schemes import SETTINGS
from psnode.errors import ConfigurationError
from psnode.feedback import get_feedback
from psnode.jobs.planning.profile import Profile
from psnode.jobs.planning.profiling import measure
from psnode.jobs.planning.search.codec_curves import fitted_curves
from psnode.jobs.planning.search.grouping import CodecCandidate
from psnode.plans.coding import SegmentCoding
from psnode.plans.groups import Segment

DENSE_FLAGS = "dense"
_GROUPINGS = ("layer", "bytes", "model")
_SIDE = 256  # rows and columns of the matrix with which a coding error is computed
# settings of a scheme's coding; the other candidates have the defaults of these settings
OF_CODING = (*SETTINGS, "small_tensors", "min_compress_bytes")


def codec_pairs(flags: str, config: Config) -> dict[str, Config]:
    """Return the settings of every candidate by its flags. The scheme's own candidate, with the flags `flags`, is the first.

    It is the only candidate if all groups must have the scheme's codec: under a majority vote, under clipping by the median,
    and for a scheme without loss.
    """
    scheme = resolve(config)
    found = {flags: config}
    if scheme.aggregator in (MAJORITY, CLIPPED) or known_codec(scheme.codec).lossless:
        return found
    plain: dict[str, Any] = {name: settings()[name].default for name in OF_CODING}
    found[DENSE_FLAGS] = replace(config, **{**plain, "scheme": "dense"})
    half = replace(
        config, **{**plain, "scheme": "dense", "codec": "bf16", "feedback": scheme.feedback, "downlink": scheme.downlink}
    )
    try:
        resolve(half)
    except ConfigurationError:  # for example, a feedback that is only for sparse codecs
        return found
    found[f"dense --codec bf16 --feedback {scheme.feedback} --downlink {scheme.downlink}"] = half
    return found


def coding_error(config: Config) -> float:
    """Return |x - decoded x|^2 / |x|^2 of the codec in `config` for a square matrix x of independent normal values."""
    scheme = resolve(config)
    segment = Segment(0, scheme.codec, 0, (_SIDE, _SIDE))
    codec = SegmentCoding.of(segment, get_feedback(scheme.feedback)).up
    values = np.random.default_rng(0).standard_normal(segment.shape).astype(np.float32)
    decoded = codec.decode(codec.encode(values, Key.derive(0)))
    return float(np.square(values - decoded).sum() / np.square(values).sum())


def measure_candidates(
    config: Config, pairs: Mapping[str, Config], tell: Callable[[str], None] = lambda line: None, *, ranks: int = 1
) -> tuple[Profile, tuple[CodecCandidate, ...]]:
    """Return the profile of the model that `config` trains, and the candidates with their curves.

    `pairs`: the settings of every candidate, by its flags. Every candidate is measured with three groupings: by layer, by
    size with large groups, and the whole model in one group. The profile has the costs of each candidate with the grouping of
    `config`. Raises ConfigurationError as psnode.jobs.planning.profiling.measure does, and for a model of one layer.
    """
    asked = {
        f"{flags} --group-by {by}": replace(each, group_by=by, group_bytes=each.group_bytes if by == "bytes" else 0)
        for flags, each in pairs.items()
        for by in _GROUPINGS
    }
    profile = measure(config, asked, tell, ranks=ranks)
    found, costs = [], {}
    for flags, each in pairs.items():
        own = [profile.schemes[f"{flags} --group-by {by}"] for by in _GROUPINGS]
        costs[flags] = own[_GROUPINGS.index(config.group_by)]
        found.append(CodecCandidate(flags, resolve(each).codec, fitted_curves(own), coding_error(each), costs[flags].lossy))
    return replace(profile, schemes=costs), tuple(found)
