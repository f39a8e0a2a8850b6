"""Shell completion of values: data sets, schemes and codecs, and in a codec's spec also parameters and stages.

Examples of a line and its completions:

    psnode train --scheme topk:                 ratio=, sampled=
    psnode train --scheme topk:sampled=t        true
    psnode train --scheme topk+                 the stages that may follow
"""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

from psnode.config.declaration import Complete

# Unlike Click's script, this one passes the whole line, since bash splits words at : and =. It adds no space after a partial
# value.
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' response completion type value
    response=$(env COMP_LINE="${COMP_LINE:0:$COMP_POINT}" COMP_WORDBREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
    for completion in $response; do
        IFS=',' read -r type value <<< "$completion"
        case $type in
            dir) COMPREPLY=(); compopt -o dirnames ;;
            file) COMPREPLY=(); compopt -o default ;;
            plain) COMPREPLY+=("$value"); case $value in *[:=,]) compopt -o nospace ;; esac ;;
        esac
    done
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


class Bash(BashComplete):
    """Completion in bash for words that contain : and =."""

    source_template = _BASH
    _known = 0  # number of characters of the value that bash counts as an earlier word

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the word that is being typed, and the part of this word that has been typed."""
        if "COMP_LINE" not in os.environ:  # called by the original script of Click
            return super().get_completion_args()
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)
        last = words.pop() if words and not line[-1:].isspace() else ""
        value = last.partition("=")[2] if last.startswith("-") else last
        breaks = set(os.environ.get("COMP_WORDBREAKS", "")) & {":", "="}
        self._known = 1 + max((value.rfind(each) for each in breaks), default=-1)
        return words[1:], last

    def format_completion(self, item: CompletionItem) -> str:
        """Return a completion in the form that bash expects.

        Bash splits words at : and =, so it gets only the part after the last of these characters.
        """
        return f"{item.type},{item.value[self._known :]}"


def _listed(names: Callable[[], Iterable[str]]) -> Complete:
    """Return a function that completes a value which must be one of `names`."""
    return lambda context, parameter, text: _beginning(text, "", names())


def _spelled(names: Callable[[], Iterable[str]], codec_of: Callable[[str], str]) -> Complete:
    """Return a function that completes the spec of a codec.

    `names` returns the names with which the spec may begin. `codec_of` returns the codec's spec for such a name.
    """

    def complete(context: click.Context, parameter: click.Parameter, text: str) -> list[CompletionItem]:
        before, plus, stage = text.rpartition("+")
        name, colon, rest = stage.partition(":")
        if colon:
            return _settings(codec_of(name) if not plus else name, rest, text[: len(text) - len(rest)])
        if plus:
            first, *others = (each.partition(":")[0] for each in before.split("+"))
            return _beginning(stage, f"{before}+", _following("+".join([codec_of(first), *others])))
        return _beginning(text, "", names())

    return complete


def _beginning(text: str, before: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(before + name) for name in names if name.casefold().startswith(text.casefold())]


def _settings(spec: str, typed: str, before: str) -> list[CompletionItem]:
    """Return completions for the parameters of a codec, or for the value of the parameter that is being typed.

    The codec is the first stage of `spec`. `typed`: the parameters that have been typed so far. `before`: the text before
    them.
    """
    from psnode.codecs import table

    first = spec.partition("+")[0].partition(":")[0]
    if not table.is_known(first) and first not in table.LOSSLESS:
        return []
    kinds = typing.get_type_hints(table.load(first))
    earlier, comma, last = typed.rpartition(",")
    key, equals, value = last.partition("=")
    if equals:
        return _beginning(value, f"{before}{earlier}{comma}{key}=", _values(kinds.get(key)))
    given = {item.partition("=")[0] for item in earlier.split(",")}
    names = [field.name for field in dataclasses.fields(table.load(first)) if field.name not in given]
    return _beginning(last, f"{before}{earlier}{comma}", [f"{name}=" for name in names])


def _values(kind: Any) -> Iterable[str]:
    if kind is bool:
        return "false", "true"
    return map(str, typing.get_args(kind)) if typing.get_origin(kind) is typing.Literal else ()


def _following(spec: str) -> list[str]:
    """Return the names of the codecs that may follow `spec` as another stage."""
    from psnode.codecs import available, table
    from psnode.codecs.registry import known_codec
    from psnode.errors import CodecSpecError

    found = []
    for name in sorted({*available(), *table.LOSSLESS}):
        try:
            known_codec(f"{spec}+{name}")
        except CodecSpecError:
            continue
        found.append(name)
    return found


def _schemes() -> Iterable[str]:
    from psnode.config.schemes import SCHEMES

    return SCHEMES


def _codec_of_scheme(name: str) -> str:
    from psnode.config.schemes import NAMES

    return NAMES[name].codec if name in NAMES else name


def _codecs() -> Iterable[str]:
    from psnode.codecs import available

    return available()


def _datasets() -> Iterable[str]:
    from psnode.tasks.data import datasets

    return datasets()


VALUES: Mapping[str, Complete] = MappingProxyType(
    {
        "dataset": _listed(_datasets),
        "scheme": _spelled(_schemes, _codec_of_scheme),
        "codec": _spelled(_codecs, str),
        "downlink": _spelled(lambda: ["dense", *_codecs()], str),
    }
)
add_completion_class(Bash)
