"""Functions that find the codec of a spec string, a file or a payload, and `register` for codecs from outside psnode.

psnode.codecs.table holds the ids and wire numbers.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

from psnode.codecs import spec, table
from psnode.codecs.base import Codec
from psnode.codecs.contractive import Contractive
from psnode.codecs.payload import Payload
from psnode.codecs.registry.python_files import class_in, classes_in, import_class
from psnode.codecs.spec import Spec, Stage
from psnode.errors import CodecSpecError, in_one_line

_ID = re.compile(r"[a-z][a-z0-9_]*")


def available() -> list[str]:
    """Return all codec ids, sorted, without the lossless stages of chains (zstd, ...)."""
    return table.codecs()


def register(cls: type[Codec]) -> None:
    """Register a codec from outside psnode, so that specs and payloads can name it.

    `cls` must be a dataclass derived from Codec without abstract methods. Its `id` consists of lower-case letters, digits and
    underscores. Its `number`, which identifies it in payloads, is in 192..255. Neither `id` nor `number` may belong to another
    codec. Raises CodecSpecError.
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
    """Return the codec of a spec string such as qsgd:levels=15; get_codec(repr(codec)) == codec.

    The spec may also be FILE:NAME[:parameter=value,...], as in `--codec`. The Python file FILE is then executed (again if it
    has changed), and its codec NAME is registered. Raises CodecSpecError, and ConfigurationError if the file cannot be used.
    """
    found = class_in(text) if isinstance(text, str) else None
    return known_codec(text if found is None else _registered(found.file, found.name).id + found.rest)


def known_codec(text: str) -> Codec:
    """Return the codec of a spec string that consists of ids. Raises CodecSpecError.

    No file is executed. Therefore `text` may come from a peer or from a record.
    """
    if isinstance(text, str) and spec.CODEC_FILE in text:
        raise CodecSpecError(f"codec {text!r} names a file, which is executed for --codec and get_codec alone: give the id here")
    return codec_of(spec.parse(text))


def load_codec(text: str) -> str:
    """Execute the file that a spec names, register its codec, and return the spec with the codec's id in place of FILE:NAME.

    The file is executed once per process. A spec without a file is returned unchanged. Raises ConfigurationError if the file
    cannot be used, and CodecSpecError if the class is not a codec.
    """
    found = class_in(text)
    return text if found is None else _loaded(found.file, found.name).id + found.rest


def codecs_in(file: Path) -> list[type[Codec]]:
    """Execute a file and return the codec classes that it defines itself, sorted by name. They are not registered.

    Raises ConfigurationError if the file cannot be used.
    """
    return [each for each in classes_in(file, "codec") if issubclass(each, Codec) and not each.__abstractmethods__]


def _registered(file: Path, name: str) -> type[Codec]:
    codec: type[Codec] = import_class(file, name, "codec")
    register(codec)
    return codec


_loaded = functools.cache(_registered)


def codec_of(parsed: Spec) -> Codec:
    """Return the codec of a parsed Spec; codec_of(codec.spec) == codec. Raises CodecSpecError."""
    codec = _build(parsed.stages)
    return codec.contractive() if parsed.wrapped else codec


def is_from_outside(codec: Codec) -> bool:
    """Return True if any stage of `codec` is not one of psnode's own."""
    return any(table.number_of(stage.id) in table.OUTSIDE for stage in codec.spec.stages)


def brief(codec: Codec) -> str:
    """Return a short spec of `codec`. It omits the settings that get_codec does not need to build an equal codec."""
    found = codec.spec
    for index, stage in enumerate(found.stages):
        for name in stage.settings:
            kept = {key: value for key, value in found.stages[index].settings.items() if key != name}
            stages = (*found.stages[:index], stage._replace(settings=kept), *found.stages[index + 1 :])
            if codec_of(found._replace(stages=stages)) == codec:
                found = found._replace(stages=stages)
    return str(found)


def decoder_of(payload: Payload) -> Codec:
    """Return a codec that decodes `payload`, chosen by the stage ids in its header."""
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
    """Register the codec that an installed package offers under the id `name`. Raises CodecSpecError."""
    point = table.offered().get(name)
    if point is None:
        raise CodecSpecError(meant) if (meant := table.meaning(name)) else spec.unknown("codec", name, available())
    try:
        cls = point.load()
    except Exception as error:
        raise CodecSpecError(f"codec {name} of {point.value} cannot be imported: {in_one_line(error)}") from error
    if getattr(cls, "id", None) != name:
        raise CodecSpecError(f"the entry point {name} of {table.GROUP} is for a codec of that id, not for {point.value}")
    register(cls)
