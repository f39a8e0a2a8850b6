"""The name of a run's coding, for lines and tables: the scheme's name, or the spec of a codec that replaces the scheme's."""

from __future__ import annotations

from psnode.codecs import Codec, table
from psnode.codecs.registry import brief, known_codec
from psnode.codecs.spec import Stage, parse
from psnode.config.schemes import SCHEMES
from psnode.errors import PsnodeError


def coding_name(scheme: str, codec: str | None, *, replaced: bool) -> str:
    """Return the name of a run's coding, for lines and tables.

    `scheme`: the scheme's name in the run's record. `codec`: the full spec of the run's codec. The name is the scheme's name if
    `codec` is the scheme's own codec. If only settings of its first stage differ, they are added, as in dgc:ratio=0.01. If more
    differs, or if --codec was given (`replaced`), the name is a short spec of the codec; it is `codec` itself if this version
    does not know the codec. If `codec` is None, or if this version does not know the scheme, the name is the scheme's name.
    This function imports no file and no package.
    """
    own = SCHEMES.get(scheme)
    if own is None or not codec:
        return scheme
    usual = known_codec(own.codec)
    try:
        if not all(table.is_known(stage.id) or stage.id in table.LOSSLESS for stage in parse(codec).stages):
            return codec
        coder = known_codec(codec)
    except (PsnodeError, ValueError, OverflowError):  # a record may hold anything
        return codec
    if coder == usual:
        return scheme
    first, *others = coder.spec.stages
    if replaced or is_replaced(scheme, coder) or others != [*usual.spec.stages[1:]]:
        return brief(coder)
    before = usual.spec.stages[0].settings
    return str(Stage(scheme, {name: value for name, value in first.settings.items() if before.get(name) != value}))


def is_replaced(scheme: str, codec: Codec) -> bool:
    """Return True if the stages of `codec` differ from those of the scheme's own codec; False if the scheme is unknown."""
    own = SCHEMES.get(scheme)
    return own is not None and _form(known_codec(own.codec)) != _form(codec)


def _form(codec: Codec) -> tuple[bool, list[str]]:
    found = codec.spec
    return found.wrapped, [stage.id for stage in found.stages]
