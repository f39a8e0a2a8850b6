"""`psnode codecs --source`, and the codecs that are reported to have rows."""

from __future__ import annotations

import json
from types import ModuleType

import pytest
from click.testing import CliRunner

from psnode.cli import app
from psnode.codecs import get_codec, table
from psnode.codecs.rows import selection_rank
from psnode.codecs.rows.cuda import text as cuda_text
from psnode.codecs.rows.known import ranking_of
from psnode.codecs.rows.numba import text as numba_text
from psnode.errors import ConfigurationError
from tests.rows.forms import program, with_formula


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["codecs", *arguments], catch_exceptions=False, standalone_mode=False)
    assert result.exit_code == 0
    return result.stdout


@pytest.mark.parametrize(("target", "language"), [("numba", numba_text), ("cuda", cuda_text)])
def test_the_source_is_what_runs(target: str, language: ModuleType) -> None:
    assert run("qsgd:levels=7", "--source", target) == language.text_of(program(get_codec("qsgd:levels=7")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["polar", "--source", "numba"], "has no formula"),
        (["topk", "--source", "numba"], "uses hand-written kernels: --source cuda"),
        (["qsgd:bucket=100", "--source", "numba"], "has no formula at these settings.*qsgd"),
        (["--source", "numba"], "name it"),
        (["qsgd", "--json", "--source", "numba"], "--json lists everything"),
    ],
)
def test_what_has_no_source_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run(*arguments)


def test_the_listing_says_which_codecs_have_rows() -> None:
    listed = {entry["id"]: entry["rows"] for entry in json.loads(run("--json"))["codecs"] if entry["id"] in table.CODECS}
    assert {name for name, rows in listed.items() if rows} == with_formula() | {"graddrop", "threshold", "topk"}
    assert listed["polar"] is False


def test_the_source_of_a_selection_is_what_a_device_runs() -> None:
    codec = get_codec("topk:ratio=0.5")
    ranking = ranking_of(codec)
    assert ranking is not None and run("topk:ratio=0.5", "--source", "cuda") == selection_rank.text_of(ranking)
