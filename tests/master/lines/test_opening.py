"""The lines at the start of a run about the cost of its scheme: a note if the cost is high, and results measured elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from psnode.cli import main
from psnode.config import Config, scheme_losses
from psnode.config.resolve import resolve
from psnode.config.scheme_losses import LossCost
from psnode.config.schemes import SCHEMES
from psnode.config.train_settings import DEFAULT_SCHEME
from psnode.master.lines.opening import doubt_of, measured_cost

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
COARSE = {
    "topk", "dgc", "randk", "graddrop", "adacomp", "atomo", "atomo-entrywise", "atomo-fourier", "tbq", "onebit", "signsgd",
    "signum", "efsignsgd",
}  # fmt: skip


def cost(cell: str, scheme: str, percent: float) -> LossCost:
    found = resolve(Config(scheme=scheme, optimizer=cell.split("/")[1]))
    return LossCost(
        cell, scheme, (found.codec, found.feedback, found.downlink, found.downlink_lead), percent, None, 20.0, 1, 0.001
    )


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_coarse_gradients_under_adam_are_told_and_nothing_else_is(
    scheme: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheme_losses, "measured", lambda: ())
    told = doubt_of(SCHEMES[scheme], optimizer)
    assert bool(told) == (scheme in COARSE and optimizer != "sgd")
    assert not told or f"--scheme {DEFAULT_SCHEME}," in told


def test_a_scheme_that_lost_much_where_it_was_measured_is_told_with_the_figure_and_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = (
        cost("gpt-small/adamw/700", "qsgd", 6.54),
        cost("gpt-small/adamw/700", DEFAULT_SCHEME, 0.87),
        cost("lstm/adamw/400", "qsgd", 3.0),
    )
    monkeypatch.setattr(scheme_losses, "measured", lambda: known)
    assert doubt_of(SCHEMES["qsgd"], "radam") == (
        "qsgd under radam cost 6.5 % of the loss of gpt-small after 700 steps; "
        f"--scheme {DEFAULT_SCHEME}, the default, 0.9 (docs/choosing.md)"
    )
    assert doubt_of(resolve(Config(optimizer="adamw")), "adamw") == ""
    assert doubt_of(SCHEMES["qsgd"], "sgd") == ""


def test_the_note_names_a_codec_that_replaces_the_schemes_own() -> None:
    told = doubt_of(resolve(Config(codec="topk:ratio=0.5", optimizer="adamw")), "adamw")
    assert told.startswith("--codec topk:ratio=0.5 under adamw: ")
    assert doubt_of(resolve(Config(scheme="atomo:rank=2", optimizer="adamw")), "adamw").startswith("atomo under adamw: ")


def test_what_a_scheme_cost_where_it_was_measured_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    known = (
        cost("gpt-small/adamw/700", DEFAULT_SCHEME, -1.61),
        cost("gpt-small/adamw/2000", DEFAULT_SCHEME, 0.42),
        cost("lstm/adamw/400", DEFAULT_SCHEME, 0.04),
        cost("vit/adamw/400", DEFAULT_SCHEME, -1.93),
        cost("lenet/sgd/400", DEFAULT_SCHEME, 0.12),
        cost("lstm/adamw/400", "topk", 9.0),
        cost("lstm/adamw/400", "dense", 0.0),
    )
    monkeypatch.setattr(scheme_losses, "measured", lambda: known)
    assert measured_cost(SCHEMES["dense"], "adamw") == ""
    assert [measured_cost(resolve(Config(optimizer=other)), other) for other in ("rmsprop", "asgd", "task")] == ["", "", ""]
    assert measured_cost(resolve(Config(optimizer="adam")), "adam") == (
        "beside dense, loss -1.6 to +0.4 % on gpt-small, lstm; accuracy +1.9 points on vit (docs/choosing.md)"
    )
    assert measured_cost(resolve(Config()), "sgd") == "beside dense, accuracy -0.1 points on lenet (docs/choosing.md)"
    assert measured_cost(SCHEMES["topk"], "sgd") == ""


def test_the_note_names_what_a_page_of_results_has_measured() -> None:
    """Check that every scheme that the note names, except the run's own, has a row in a table of the page."""
    told = doubt_of(SCHEMES["tbq"], "adamw")  # a scheme that the record does not contain
    pages = (RESULTS / "2026-11-23-defaults.md").read_text()
    losing = [name for name in SCHEMES if re.search(rf"\b{name}\b", told.partition("; ")[0].partition(":")[2])]
    assert sorted(losing) == ["atomo", "efsignsgd", "onebit", "topk"]
    assert [name for name in losing if not re.search(rf"^\| {name}[^|]*\|.*\| 2\.2\d\d \|", pages, re.MULTILINE)] == []
    assert re.search(rf"^\| {DEFAULT_SCHEME} \|", (RESULTS / "2026-11-26-adam.md").read_text(), re.MULTILINE)


def test_the_first_lines_name_the_codec_that_replaces_the_schemes_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train = ["train", "--local", "1", "--network", "FC", "--batch-size", "8", "--no-tensorboard", "--codec", "fp16"]
    assert main([*train, "--max-steps", "1", "--train-dir", str(tmp_path / "run")]) == 0
    done = capfd.readouterr()
    assert re.search(r"scheme +fp16, lr ", done.out + done.err)
    assert main([*train, "--dry-run"]) == 0
    assert re.search(r"scheme +fp16: up fp16", capfd.readouterr().out)
