"""From a spec string or a payload to a codec."""

from __future__ import annotations

from psnode.codecs import spec, table
from psnode.codecs.base import Codec
from psnode.codecs.payload import Payload
from psnode.codecs.spec import Stage


def available() -> list[str]:
    """Every codec id, sorted. Stages of chains (zstd, ...) are not among them."""
    return sorted(name for name, entry in table.CODECS.items() if entry.target)


def get_codec(text: str) -> Codec:
    """The codec of a spec string; get_codec(repr(codec)) == codec. Raises CodecSpecError."""
    wrapped, stages = spec.parse(text)
    codec = _build(stages)
    return codec.contractive() if wrapped else codec


def decoder_of(payload: Payload) -> Codec:
    """A codec that decodes `payload`, found by the ids in it."""
    wrapped = payload.stages[0] in table.WRAPPERS
    codec = _build(tuple(Stage(name, {}) for name in payload.stages[wrapped:]))
    if not wrapped:
        return codec
    from psnode.codecs.contractive import Contractive

    return Contractive(codec)


def _build(stages: tuple[Stage, ...]) -> Codec:
    if len(stages) > 1:
        from psnode.codecs.chain import build_chain

        return build_chain(stages)
    name = stages[0].id
    if name not in available():
        raise spec.unknown("codec", name, available())
    codec: Codec = spec.construct(table.load(name), stages[0])
    return codec
