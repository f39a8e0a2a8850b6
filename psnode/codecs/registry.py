"""From a spec string or a payload to a codec; codecs from outside psnode. psnode.codecs.table has ids and wire numbers."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from psnode.codecs import spec, table
from psnode.codecs.base import Codec
from psnode.codecs.contractive import Contractive
from psnode.codecs.payload import Payload
from psnode.codecs.spec import Spec, Stage
from psnode.errors import CodecSpecError, in_one_line

_ID = re.compile(r"[a-z][a-z0-9_]*")


def available() -> list[str]:
    """Every codec id, sorted. Stages of chains (zstd, ...) are not among them."""
    return table.codecs()


def register(cls: type[Codec]) -> None:
    """Make a codec from outside psnode known, so that specs and payloads may name it.

    `cls`: a dataclass derived from Codec, complete, whose `id` is a word of lower case and whose `number`, which stands for it in
    payloads, is 192 to 255; neither may be another codec's. Raises CodecSpecError.
    """
    name = getattr(cls, "__name__", repr(cls))
    if not (isinstance(cls, type) and issubclass(cls, Codec) and dataclasses.is_dataclass(cls)):
        raise CodecSpecError(f"{name} is no codec: write a dataclass derived from psnode.codecs.Codec")
    if missing := sorted(cls.__abstractmethods__):
        raise CodecSpecError(f"codec {name} lacks the method{'s' * (len(missing) > 1)} {', '.join(missing)}")
    found: Any = cls
    if not isinstance(getattr(cls, "id", None), str) or not _ID.fullmatch(cls.id):
        raise CodecSpecError(f"codec {name} needs an id of lower-case letters, digits and underscores, such as id = 'half'")
    if getattr(cls, "number", None) not in table.OUTSIDE:
        raise CodecSpecError(f"codec {name} needs a number from 192 to 255 for its payloads, such as number = 192")
    try:
        table.add(found)
    except ValueError as error:
        raise CodecSpecError(f"codec {name} has the {error}: choose another one") from error


def get_codec(text: str) -> Codec:
    """The codec of a spec string; get_codec(repr(codec)) == codec. Raises CodecSpecError."""
    return codec_of(spec.parse(text))


def codec_of(parsed: Spec) -> Codec:
    """The codec of a spec that was parsed or changed; codec_of(codec.spec) == codec. Raises CodecSpecError."""
    codec = _build(parsed.stages)
    return codec.contractive() if parsed.wrapped else codec


def is_from_outside(codec: Codec) -> bool:
    """True if a stage of `codec` comes from outside psnode."""
    return any(table.number_of(stage.id) in table.OUTSIDE for stage in codec.spec.stages)


def brief(codec: Codec) -> str:
    """A shorter spec of a codec: settings are left out as long as get_codec makes an equal one of the rest."""
    found = codec.spec
    for index, stage in enumerate(found.stages):
        for name in stage.settings:
            kept = {key: value for key, value in found.stages[index].settings.items() if key != name}
            stages = (*found.stages[:index], stage._replace(settings=kept), *found.stages[index + 1 :])
            if codec_of(found._replace(stages=stages)) == codec:
                found = found._replace(stages=stages)
    return str(found)


def decoder_of(payload: Payload) -> Codec:
    """A codec that decodes `payload`, found by the ids in it."""
    wrapped = payload.stages[0] in table.WRAPPERS
    codec = _build(tuple(Stage(name, {}) for name in payload.stages[wrapped:]))
    return Contractive(codec) if wrapped else codec


def _build(stages: tuple[Stage, ...]) -> Codec:
    if len(stages) > 1:
        from psnode.codecs.chain import build_chain

        return build_chain(stages)
    name = stages[0].id
    if not table.is_known(name):
        _import_offered(name)
    codec: Codec = spec.construct(table.load(name), stages[0])
    return codec


def _import_offered(name: str) -> None:
    """Register the codec that an installed package offers by this name. Raises CodecSpecError."""
    point = table.offered().get(name)
    if point is None:
        raise spec.unknown("codec", name, available())
    try:
        cls = point.load()
    except Exception as error:
        raise CodecSpecError(f"codec {name} of {point.value} cannot be imported: {in_one_line(error)}") from error
    if getattr(cls, "id", None) != name:
        raise CodecSpecError(f"the entry point {name} of {table.GROUP} is for a codec of that id, not for {point.value}")
    register(cls)
