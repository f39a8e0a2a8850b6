"""Decisions about the work of a device: which segments of a plan it codes, and which changes of weights it decodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from psnode.codecs import Codec
from psnode.codecs.device.change import ChangeOfEntries, decoder
from psnode.codecs.device.checks import Verdict, check, check_entries
from psnode.codecs.device.protocols import Change, DeviceCodec, DeviceEncoder
from psnode.codecs.device.spectral import is_spectral
from psnode.plans.groups import Plan, Segment

if TYPE_CHECKING:
    from psnode.exchange.segment_coder import SegmentCoder

_NONE = "it has no kernels for a device"
_OTHER_BITS = "a device makes other last bits of its factors"


class Placed(NamedTuple):
    """Result of `place_on`: names of tensors of which the device codes a part, the CUDA stream, and a verdict per codec.

    A verdict holds a codec's form for the device, or the reason why the host has to code.
    """

    names: frozenset[str]
    stream: torch.cuda.Stream | None
    verdicts: list[Verdict]


def place_on(plan: Plan, coders: Sequence[SegmentCoder], device: torch.device) -> Placed:
    """Make each of `coders` use `device` if the device can run its codecs and its feedback rule. Return the decisions.

    A codec can run on the device if its kernels give the host's results. Segments that travel uncompressed get no verdict.
    Raises ConfigurationError if CuPy is absent.
    """
    verdicts: dict[str, Verdict] = {}
    names: set[str] = set()
    for coder in coders:
        codec = coder.codec(0)
        if codec.lossless:
            continue
        if coder.codecs_by_spec is None:
            spec = repr(codec)
            verdicts[spec] = Verdict(spec, None, f"its feedback rule ({coder.feedback!r}) or its codebook is the host's")
            continue
        found: dict[str, DeviceCodec] = {}
        for spec, phase in coder.codecs_by_spec.items():
            if spec not in verdicts:
                verdicts[spec] = check(phase, device) or Verdict(spec, None, _NONE)
            if (there := verdicts[spec].on_device) is not None:
                found[spec] = there
        if len(found) == len(coder.codecs_by_spec):
            coder.use(found, device)
            names |= plan.covering(coder.segment.start, coder.segment.stop).keys()
    stream = torch.cuda.Stream(device) if names else None  # type: ignore[no-untyped-call]
    return Placed(frozenset(names), stream, list(verdicts.values()))


class Encoders(NamedTuple):
    """Encoders of segments, by the segment's number, on the device of the segments' values, and a verdict on each codec.

    A verdict holds a codec's form for the device, or the reason why the host has to code.
    """

    by_segment: dict[int, DeviceEncoder]
    verdicts: list[Verdict]


def encoders_on(plan: Plan, codecs: Sequence[Codec], device: torch.device) -> Encoders:
    """Return encoders on `device` for the segments whose codec gives the same bytes on the device as on the host.

    `codecs`: one codec per segment. A codec that is svd or begins with svd gets no encoder, since the factors of svd differ in
    their last bits. Segments that travel uncompressed get no verdict, and empty segments no encoder. Raises ConfigurationError
    if CuPy is absent.
    """
    verdicts: dict[str, Verdict] = {}
    found: dict[int, DeviceEncoder] = {}
    for segment, codec in _coded(plan, codecs):
        if (spec := repr(codec)) not in verdicts:
            own = Verdict(spec, None, _OTHER_BITS) if is_spectral(decoder(codec)) else check(codec, device)
            verdicts[spec] = own or Verdict(spec, None, _NONE)
        if (there := verdicts[spec].on_device) is not None:
            found[segment.index] = there.encoder(segment.shape)
    return Encoders(found, list(verdicts.values()))


class Changes(NamedTuple):
    """Changes of segments, by the segment's number, that the device of the weights decodes, and a verdict on each codec.

    A verdict holds a codec's form for the device, or the reason why the host has to decode.
    """

    by_segment: dict[int, Change]
    verdicts: list[Verdict]


def changes_on(plan: Plan, codecs: Sequence[Codec], weights: torch.Tensor) -> Changes:
    """Return changes that add payloads of `codecs`, one per segment, to `weights`, the plan's flat vector on a device.

    Segments that travel uncompressed get no verdict, and empty segments no change. Raises ConfigurationError if CuPy is
    absent.
    """
    verdicts: dict[str, Verdict] = {}
    found: dict[int, Change] = {}
    for segment, codec in _coded(plan, codecs):
        if (spec := repr(codec)) not in verdicts:
            wrapped = decoder(codec)
            own = check_entries(wrapped, weights.device) if codec.sparse else check(wrapped, weights.device)
            verdicts[spec] = (own or Verdict(spec, None, _NONE))._replace(spec=spec)
        verdict, part = verdicts[spec], weights[segment.start : segment.stop]
        if codec.sparse and not verdict.problem:
            found[segment.index] = ChangeOfEntries(codec, part)
        elif verdict.on_device is not None:
            found[segment.index] = verdict.on_device.change(codec, part)
    return Changes(found, list(verdicts.values()))


def _coded(plan: Plan, codecs: Sequence[Codec]) -> list[tuple[Segment, Codec]]:
    """Return the segments that are not empty and whose codec compresses, each with its codec."""
    pairs = zip(plan.segments, codecs, strict=True)
    return [(segment, codec) for segment, codec in pairs if segment.size and not codec.lossless]
