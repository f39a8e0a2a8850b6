"""Groupings of a model's tensors: the result of a search as plain data, the plan that it describes, and the plan's costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.jobs.planning.profile import GroupCosts, SchemeCosts, TensorTimes
from psnode.jobs.planning.search.codec_curves import CodecCurves
from psnode.plans.groups import IDENTITY, Plan, Tensor
from psnode.plans.rule import assembled, codec_in_plan


@dataclass(frozen=True)
class CodecCandidate:
    """A way to code a group, which a search may choose.

    `flags`: a scheme with flags of train that codes in this way. `codec`: the full spec of its codec. `error`: |x - decoded
    x|^2 / |x|^2, where x is the coded part of a gradient. `lossy`: see SchemeCosts.
    """

    flags: str
    codec: str
    curves: CodecCurves
    error: float
    lossy: bool = True


@dataclass(frozen=True)
class GroupChoice:
    """A group that a search has chosen.

    It has the names of neighbouring tensors, the flags of its candidate, and the number of equal parts in which it is sent.
    """

    names: tuple[str, ...]
    flags: str
    parts: int = 1


@dataclass(frozen=True)
class Grouping:
    """Groups that contain all tensors of a model, in the order in which their gradients finish.

    `seconds`: the step time in the model that found the grouping. `error`: the sum over the tensors of the error of their
    codec, weighted by the tensor's share of |gradient|^2.
    """

    groups: tuple[GroupChoice, ...]
    seconds: float
    error: float


@dataclass(frozen=True)
class SmallTensorRules:
    """The settings that decide which tensors are sent uncoded: see psnode.plans.rule.make_plan."""

    min_compress_bytes: int = 4096
    code_small: bool = False

    @classmethod
    def of(cls, config: Config) -> SmallTensorRules:
        """Return the rules that the settings of `config` define."""
        return cls(config.min_compress_bytes, config.small_tensors == "coded")

    def codes(self, name: str, shape: tuple[int, ...], codec: str) -> bool:
        """Return True if a plan codes the tensor by `codec`, which is requested for it; False if it is sent uncoded.

        Raises ConfigurationError if the codec cannot code the tensor.
        """
        tensor = Tensor(name, shape)
        found = codec_in_plan(tensor, codec, min_compress_bytes=self.min_compress_bytes, code_small=self.code_small)
        return found != IDENTITY


def grouped_plan(
    tensors: Sequence[Tensor],
    groups: Sequence[GroupChoice],
    codecs: Mapping[str, str],
    rules: SmallTensorRules | None = None,
    *,
    whole_tensors: bool = False,
) -> Plan:
    """Return the plan with these groups. `codecs`: the spec of every candidate, by its flags.

    Small tensors, and segments that coding would not make smaller, are sent uncoded. Segments are cut at multiples of
    PARTITION coordinates, and have at most MAX_SEGMENT. `whole_tensors`: True if the optimizer needs whole tensors, so
    that every group is sent in one part. A plan without a coded segment belongs to a scheme with a dense downlink, since
    any other scheme would code the changes of weights.

    Raises ConfigurationError unless the groups contain every tensor once, in order, and name only candidates in `codecs`.
    """
    names = [name for group in groups for name in group.names]
    if names != [tensor.name for tensor in tensors]:
        raise ConfigurationError("the groups do not hold every tensor of the model once, in the order of their gradients")
    if unknown := [group.flags for group in groups if group.flags not in codecs]:
        raise ConfigurationError(f"no codec is given for the groups of {unknown[0]!r}")
    if empty := [group for group in groups if not group.names or group.parts < 1]:
        raise ConfigurationError(f"{empty[0]} is no group: it needs a tensor and at least one part")
    by_name = {tensor.name: tensor for tensor in tensors}
    runs = []
    for group in groups:
        members = [by_name[name] for name in group.names]
        nbytes = 4 * sum(tensor.size for tensor in members)
        runs.append((members, codecs[group.flags], nbytes / group.parts if group.parts > 1 and nbytes else float("inf")))
    chosen = rules or SmallTensorRules()
    return assembled(
        runs, min_compress_bytes=chosen.min_compress_bytes, whole_tensors=whole_tensors, code_small=chosen.code_small
    )


def planned_costs(plan: Plan, tensors: Sequence[TensorTimes], candidates: Sequence[CodecCandidate]) -> SchemeCosts:
    """Return the costs of a plan by the candidates' curves, for psnode.jobs.planning.job_step.

    All coded segments of a group have the same codec. The group has the costs of the candidate with this codec, or of the
    first candidate if none has it. A group is ready when its last tensor is ready, and needed when its first tensor is
    needed. A group without a coded coordinate is sent in the same way under all candidates. It has the costs of a candidate
    that codes nothing, if there is one. `bookkeeping` is the mean over the groups. Raises KeyError for unknown tensors.
    """
    by_name, places = {tensor.name: tensor for tensor in tensors}, plan.slices()
    by_codec = {candidate.codec: candidate for candidate in reversed(candidates)}
    bare = by_codec.get(IDENTITY, candidates[0])
    found, extra, kept, lossy = list[GroupCosts](), 0.0, 0.0, False
    for group in plan.groups:
        inside = [by_name[name] for name, place in places.items() if place.start < group.stop and group.start < place.stop]
        segments = [segment for segment in group.segments if segment.codec != IDENTITY]
        candidate = by_codec.get(segments[0].codec, candidates[0]) if segments else bare
        coded = sum(segment.size for segment in segments)
        ready, needed = max(tensor.ready for tensor in inside), min(tensor.needed for tensor in inside)
        found.append(candidate.curves.group(coded, group.size - coded, ready, needed))
        extra += candidate.curves.extra.at(coded, group.size - coded)
        kept += candidate.curves.bookkeeping.at(coded, group.size - coded)
        lossy = lossy or candidate.lossy
    return SchemeCosts(tuple(found), kept / max(1, len(found)), extra, lossy)
