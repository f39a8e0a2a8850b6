"""Specs of codecs as text: a stage's parameters replaced, a sparsifier's ratio read and set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psnode.codecs.spec import Stage, parse


def ratio_of(spec: str) -> float | None:
    """The ratio of the sparsifier in a full `spec`; None if there is none."""
    return next((float(stage.settings["ratio"]) for stage in parse(spec)[1] if "ratio" in stage.settings), None)


def with_ratio(spec: str, ratio: float) -> str:
    """`spec` with the ratio of its sparsifier set to `ratio`; unchanged if it has none."""
    from psnode.codecs import get_codec

    stages = parse(repr(get_codec(spec)))[1]
    return joined(spec, {index: {"ratio": repr(ratio)} for index, stage in enumerate(stages) if "ratio" in stage.settings})


def phases(spec: str, warmup: Sequence[float]) -> list[str]:
    """The specs of a codec in the phases of a warm-up through the ratios of `warmup`, and after it: `spec`, the last."""
    from psnode.codecs import get_codec

    return [*(with_ratio(spec, ratio) for ratio in warmup if not get_codec(spec).lossless), spec]


def written(stage: Stage) -> str:
    return f"{stage.id}:{','.join(f'{key}={value}' for key, value in stage.settings.items())}".removesuffix(":")


def joined(spec: str, changes: Mapping[int, Mapping[str, str]]) -> str:
    """`spec` with the parameters of stage i set to those of `changes[i]`."""
    wrapped, stages = parse(spec)
    parts = []
    for index, stage in enumerate(stages):
        parts.append(written(Stage(stage.id, {**stage.settings, **changes.get(index, {})})))
    return f"contractive({'+'.join(parts)})" if wrapped else "+".join(parts)
