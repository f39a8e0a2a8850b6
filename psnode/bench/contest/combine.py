"""Combination of results of `psnode bench peers` that were measured in several pieces, each of one or several rounds.

A ratio compares only contenders of the same piece. A contender that a piece did not measure counts as failed in the rounds of
this piece.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from psnode.bench.contest.contender_run import ContenderRun, Point
from psnode.bench.contest.contenders import Label, SharedSettings
from psnode.bench.contest.standings import row, with_ratios
from psnode.errors import ConfigurationError

Trials = Mapping[str, Mapping[Label, Sequence[ContenderRun | None]]]  # by rate and contender, one run per round; None: failed
_APART = frozenset({"seed", "steps"})  # settings that may differ between combined pieces


def tables(trials: Trials, failed: Mapping[str, Mapping[str, str]], target: float | None) -> dict[str, Any]:
    """Return the derived part of a result by rate: the rows of the tables, the failures, and the trials themselves."""
    rows = {rate: [row(label, rounds, target) for label, rounds in here.items() if any(rounds)] for rate, here in trials.items()}
    with_ratios(rows)
    return {
        rate: {
            "least_goodput_mbit": [min(trial.goodput) for rounds in here.values() for trial in rounds if trial],
            "rows": rows[rate],
            "failed": dict(failed[rate]),
            "trials": [
                {**label._asdict(), "rounds": [None if trial is None else asdict(trial) for trial in rounds]}
                for label, rounds in here.items()
            ],
        }
        for rate, here in trials.items()
    }


def combine(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Combine results whose settings (`ground`) differ at most in seed and steps. Return one result for each different ground."""
    grounds: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        ground = {key: value for key, value in result["ground"].items() if key not in _APART}
        grounds.setdefault(repr(sorted(ground.items())), []).append(result)
    return [_together(pieces) for pieces in grounds.values()]


def _together(pieces: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    trials: dict[str, dict[Label, list[ContenderRun | None]]] = {}
    failed: dict[str, dict[str, str]] = {}
    for piece in pieces:
        for rate, found in piece["rates"].items():
            failed.setdefault(rate, {}).update(found["failed"])
            trials.setdefault(rate, {}).update({label: [] for label in _measured(piece, rate)})
    for piece in pieces:
        for rate, here in trials.items():
            measured = _measured(piece, rate)
            most = max(map(len, measured.values()), default=0)
            for label, together in here.items():
                rounds = measured.get(label, [])
                together += rounds + [None] * (most - len(rounds))
    order = {"floor": 0, "ddp": 1}
    sorted_ = {rate: dict(sorted(here.items(), key=lambda item: order.get(item[0].kind, 2))) for rate, here in trials.items()}
    most = max(len(each) for here in trials.values() for each in here.values())
    return {**pieces[0], "rounds": most, "rates": tables(sorted_, failed, pieces[0]["target"])}


def _measured(piece: Mapping[str, Any], rate: str) -> dict[Label, list[ContenderRun | None]]:
    """Return the rounds of every contender that a piece measured at `rate`; empty if the piece lacks this rate."""
    trials = piece["rates"].get(rate, {"trials": ()})["trials"]
    return {Label(each["name"], each["kind"]): [trial and _trial(trial) for trial in each["rounds"]] for each in trials}


def _trial(fields: Mapping[str, Any]) -> ContenderRun:
    curve = tuple(Point(**point) if isinstance(point, Mapping) else Point(*point) for point in fields["curve"])
    return ContenderRun(**{**fields, "steps": tuple(fields["steps"]), "goodput": tuple(fields["goodput"]), "curve": curve})


def load(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Load results that earlier runs wrote with --json. Raises ConfigurationError for a file that contains no such result."""
    found = []
    for path in paths:
        try:
            result = json.loads(path.read_bytes())
            SharedSettings(**result["ground"])
            found.append(result)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigurationError(f"--from {path} holds no result of bench peers ({error}): name a file of --json") from error
    return found
