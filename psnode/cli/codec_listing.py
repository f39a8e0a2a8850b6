"""The output of `psnode codecs`: every codec with its traits, and every scheme, as data and as tables."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from psnode.codecs import Codec, available, get_codec
from psnode.codecs.spec import Stage
from psnode.codecs.table import meaning
from psnode.config.declaration import nearest
from psnode.config.scheme import Scheme
from psnode.config.schemes import NAMES, SCHEMES
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.table import Table

_TRAITS = ("unbiased", "lossless", "linear", "shaped", "sparse", "adaptive")
_SIZE = 1 << 20
_MATRIX = (1024, 1024)


def everything() -> dict[str, Any]:
    """Return the lists `codecs` and `schemes`, in types that JSON has.

    `max_bits` of a codec is its maximum number of bits per coordinate for a 1024 x 1024 matrix, header included. `rows` is
    True if the codec has a formula, from which its kernels are generated, at its default parameters.
    """
    return {
        "codecs": [_describe(get_codec(name)) for name in available()],
        "schemes": [dataclasses.asdict(s) for s in SCHEMES.values()],
    }


def _describe(codec: Codec) -> dict[str, Any]:
    from psnode.codecs.rows.known import has_formula

    return {
        "id": codec.id,
        "default": repr(codec),
        "summary": (inspect.getdoc(inspect.getmodule(codec)) or "").partition("\n")[0],
        **{trait: getattr(codec.traits, trait) for trait in _TRAITS},
        "rows": has_formula(codec),
        "max_bits": 8 * codec.max_nbytes(_MATRIX) / _SIZE,
    }


def show() -> None:
    """Print the tables of codecs and schemes, as wide as the terminal, or 80 columns wide if there is no terminal."""
    found = everything()
    codecs = _table("codec", "bits", "traits", "what it does")
    for entry in found["codecs"]:
        codecs.add_row(entry["id"], f"{entry['max_bits']:.3g}", _traits(entry), _short(entry["summary"]))
    schemes = _table("scheme", "lr", "feedback", "what it does")
    for entry in found["schemes"]:
        schemes.add_row(entry["name"], f"{entry['lr']:g}", entry["feedback"].partition(":")[0], entry["summary"])
    _print("Codecs: most bits per coordinate of a 1024 x 1024 matrix, at their defaults", codecs)
    _print("Schemes: values of --scheme; lr is the learning rate unless --lr is given", schemes)
    click.echo("psnode codecs NAME explains one in full.")


def explain(name: str) -> None:
    """Print everything about the codec, feedback rule or scheme called `name`.

    A `name` of the form FILE:NAME is a codec in a file, and a FILE without a NAME lists the codecs in the file. In both cases
    the file is executed. Raises ConfigurationError for an unknown name.
    """
    if name.endswith(".py"):
        _list_file(name)
        return
    from psnode.codecs.registry import load_codec
    from psnode.feedback import RULES

    name = load_codec(name)
    scheme, stage = NAMES.get(name.casefold()), name.partition(":")[0].partition("+")[0]
    if scheme is None and stage not in available() and stage not in RULES:
        raise ConfigurationError(
            meaning(name) or f"there is no codec or scheme {name!r}{nearest(name, [*available(), *NAMES, *RULES])}"
        )
    if stage in available() and (scheme is None or name in available()):
        _explain_codec(get_codec(name))
    if stage in RULES:
        _explain_rule(name)
    if scheme is not None:
        _explain_scheme(scheme)


def _list_file(name: str) -> None:
    """Print a line for each codec that the file `name` defines: its spec, as users type it, and a summary."""
    from psnode.codecs.registry import codecs_in

    found = codecs_in(Path(name).expanduser().absolute())
    if not found:
        raise ConfigurationError(
            f"{name} defines no codec: a codec is a dataclass derived from psnode.codecs.Codec (CONTRIBUTING.md)"
        )
    click.echo(f"Codecs of {name}, for --codec and psnode codecs:\n")
    for each in found:
        summary = (inspect.getdoc(each) or "").partition("\n")[0]
        click.echo(f"{name}:{each.__name__}  {summary}")


def show_source(spec: str, target: str) -> None:
    """Print the source text that is generated from the formula of a codec. `spec`: the codec's spec. `target`: "cuda" or "numba".

    Raises ConfigurationError if the codec has no formula, or only hand-written kernels for `target`.
    """
    from psnode.codecs.rows import selection_rank
    from psnode.codecs.rows.cuda import text as cuda_text
    from psnode.codecs.rows.formula import program_of
    from psnode.codecs.rows.known import formula_of, has_formula, ranking_of
    from psnode.codecs.rows.numba import text as numba_text

    codec = get_codec(spec)
    formula, ranking = formula_of(codec), ranking_of(codec)
    if ranking is not None:
        if target != "cuda":
            raise ConfigurationError(
                f"on a processor {codec!r} uses hand-written kernels: --source cuda is generated from its formula"
            )
        click.echo(selection_rank.text_of(ranking), nl=False)
        return
    if formula is None:
        others = ", ".join(name for name in available() if has_formula(get_codec(name)))
        raise ConfigurationError(f"{codec!r} has no formula at these settings: those that have one by default are {others}")
    language = {"cuda": cuda_text, "numba": numba_text}[target]
    click.echo(language.text_of(program_of(formula)), nl=False)


def _explain_codec(codec: Codec) -> None:
    entry, rows = _describe(codec), _table()
    click.echo(f"codec {codec.id}\n\n{inspect.getdoc(inspect.getmodule(codec))}\n")
    for stage in codec.spec.stages:
        rows.add_row(f"parameters of {stage.id}", ", ".join(f"{key}={value}" for key, value in stage.settings.items()) or "none")
    rows.add_row("traits", _traits(entry) or "none")
    rows.add_row("bits", f"at most {entry['max_bits']:.3g} per coordinate of a 1024 x 1024 matrix")
    users = [scheme.name for scheme in SCHEMES.values() if codec.id in re.split(r"[+:]", scheme.codec)]
    rows.add_row("schemes", ", ".join(users) or "none: use it with --codec")
    _print("", rows)


def _explain_rule(text: str) -> None:
    from psnode.feedback import get_feedback

    rule, rows = get_feedback(text), _table()
    stage = Stage.of(rule.id, rule)
    click.echo(f"feedback {rule.id}\n\n{inspect.getdoc(type(rule))}\n")
    rows.add_row(f"parameters of {rule.id}", ", ".join(f"{key}={value}" for key, value in stage.settings.items()) or "none")
    rows.add_row("remembers", ", ".join(name for name in rule.init(0) if name not in rule.scratch) or "nothing")
    users = [scheme.name for scheme in SCHEMES.values() if scheme.feedback.partition(":")[0] == rule.id]
    rows.add_row("schemes", ", ".join(users) or "none: use it with --feedback")
    _print("", rows)


def _explain_scheme(scheme: Scheme) -> None:
    rows = _table()
    click.echo(f"scheme {scheme.name}: {scheme.summary}\n")
    rows.add_row("paper", scheme.paper)
    rows.add_row("up", scheme.codec)
    rows.add_row("down", scheme.downlink)
    rows.add_row("feedback", scheme.feedback)
    rows.add_row("aggregator", scheme.aggregator)
    rows.add_row("momentum", f"{scheme.momentum:g}")
    if scheme.ratio_warmup:
        ladder = ", ".join(f"{ratio:g}" for ratio in scheme.ratio_warmup)
        rows.add_row("warm-up", f"ratios {ladder}, {scheme.ratio_epochs:g} epochs each")
    rows.add_row("learning rate", f"{scheme.lr:g} unless --lr is given; the rule: {scheme.rule}")
    others = [alias for alias in scheme.aliases if alias != scheme.name]
    if others:
        rows.add_row("also called", ", ".join(others))
    _print("", rows)


def _short(summary: str) -> str:
    """Return the part of a codec's summary that describes its purpose.

    A summary is the first line of the docstring of the codec's module. The part begins after the codec's name and ends at the
    first full stop.
    """
    return (summary.partition(": ")[2] or summary).partition(". ")[0].rstrip(".")


def _traits(entry: dict[str, Any]) -> str:
    return " ".join(["" if entry["unbiased"] else "biased", *(trait for trait in _TRAITS if entry[trait])]).strip()


def _table(*titles: str) -> Table:
    from rich.table import Table

    return Table(*titles, box=None, pad_edge=False, show_header=bool(titles))


def _print(title: str, rows: Table) -> None:
    from rich.console import Console

    if title:
        click.echo(title + "\n")
    Console(highlight=False).print(rows)
    click.echo()
