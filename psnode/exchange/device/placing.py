"""Decide which segments of a plan are coded on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from psnode.exchange.device.trust import Verdict, check
from psnode.plan.groups import Plan

if TYPE_CHECKING:
    from psnode.exchange.segment_coder import SegmentCoder


class Placed(NamedTuple):
    """A decision: `names` of the tensors with a part coded on the device, the stream for it, and a verdict a codec."""

    names: frozenset[str]
    stream: torch.cuda.Stream | None
    verdicts: list[Verdict]


def place_on(plan: Plan, coders: Sequence[SegmentCoder], device: torch.device) -> Placed:
    """Have those of `coders` use `device` whose codec has a formula, which it codes as the host does, under a rule it can follow.

    Segments that travel as they are need no verdict. ConfigurationError if CuPy is absent.
    """
    verdicts: dict[str, Verdict] = {}
    names: set[str] = set()
    for coder in coders:
        codec = coder.codec(0)
        if codec.lossless:
            continue
        spec = repr(codec)
        if coder.only_codec is None:
            verdicts[spec] = Verdict(spec, None, f"its feedback rule ({coder.feedback!r}) or its phases are the host's")
        elif spec not in verdicts:
            verdicts[spec] = check(codec, device) or Verdict(spec, None, "it has no formula for a device")
        if (kernels := verdicts[spec].kernels) is not None:
            coder.use(kernels, device)
            names |= plan.covering(coder.segment.start, coder.segment.stop).keys()
    stream = torch.cuda.Stream(device) if names else None  # type: ignore[no-untyped-call]
    return Placed(frozenset(names), stream, list(verdicts.values()))
