"""The comparison of `psnode bench convergence`: contenders, learning rates to try for each of them, and rows of the result."""

from __future__ import annotations

import re
import shlex
import statistics
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from psnode.bench.convergence.accuracy_curves import mean_curve, merit
from psnode.bench.convergence.convergence_run import ConvergenceRun
from psnode.bench.convergence.curve_plot import check_plot, draw_curves
from psnode.bench.convergence.ddp_run import DdpRun, is_ddp
from psnode.bench.convergence.result_tables import csv_table, edge_notes, latex, markdown
from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config.amounts import rate_of
from psnode.errors import ConfigurationError, DivergedError
from psnode.jobs.tuning.replicas import mean_and_error

_NAMED = re.compile(r"\s*([^=:]*?)\s*=(.*)", re.DOTALL)


def named_runs(texts: Iterable[str]) -> dict[str, str]:
    """Return the flags of each run that `texts` describe, by the name of the run.

    A text is NAME=SCHEME [FLAGS], where NAME has no colon and no flag. Without NAME= the whole text is also the name; it is a
    scheme with its own flags, or flags only. Raises ConfigurationError if two runs have the same name.
    """
    found: dict[str, str] = {}
    for text in texts:
        match = _NAMED.fullmatch(text)
        is_named = match is not None and match[1] != "" and "--" not in match[1]
        name, flags = (match[1], match[2].strip()) if match is not None and is_named else (text, text)
        if not shlex.split(flags):
            raise ConfigurationError(f"--run {text!r} names no scheme: write --run 'NAME=SCHEME [FLAGS]' or 'NAME=--codec SPEC'")
        if found.setdefault(name, flags) != flags:
            raise ConfigurationError(f"--run {name!r} is given twice: choose another name")
    return found


@dataclass(frozen=True)
class Comparison:
    """Contenders, seeds and learning rates of a comparison.

    * runs: flags of each contender by its name: a scheme with its own flags, or flags only
    * lrs: learning rates to try, as text; the report shows each contender at its rate of best accuracy
    * screen: True to compare the rates only on the first seed, and to run the other seeds only at the best rate
    * pattern: the run of which all runs are copies, with other flags and seeds
    * rate: rate of the links in bit/s, for the estimated seconds; None: no estimate
    """

    runs: dict[str, str]
    seeds: tuple[int, ...]
    lrs: tuple[str, ...]
    screen: bool
    pattern: ConvergenceRun
    rate: float | None = None

    def of(self, name: str, lr: str, seed: int) -> ConvergenceRun:
        """Return a contender's run at the learning rate `lr`; "" stands for the rate in the contender's own flags."""
        rate = ("--lr", lr) if lr else ()
        named = "-".join((name, *rate)) if self.runs[name] != name else ""
        found = replace(self.pattern, flags=(*shlex.split(self.runs[name]), *rate), seed=seed, name=named)
        return DdpRun(**vars(found)) if is_ddp(found.flags) else found

    def check(self) -> None:
        """Raise ConfigurationError for a run that train would refuse, and PsnodeError if its directory contains another run."""
        owners: dict[Path, ConvergenceRun] = {}
        for name, lr, seed in product(self.runs, self.rates, self.seeds):
            run = self.of(name, lr, seed)
            run.check()
            if owners.setdefault(run.directory, run) != run:
                raise ConfigurationError(f"--run {name!r} and another one would write to {run.directory}: choose another name")

    @property
    def rates(self) -> tuple[str, ...]:
        """The learning rates that each contender tries; "" stands for the rate in its flags, or else that of its scheme."""
        return self.lrs or ("",)

    @property
    def tuning(self) -> tuple[int, ...]:
        """The seeds on which learning rates are compared."""
        return self.seeds[:1] if self.screen else self.seeds

    def rows(self, jobs: int) -> list[dict[str, Any]]:
        """Train the missing runs, `jobs` runs at a time, and return a row for each contender.

        A rate at which a run diverged is never the best rate, and its figures in `tried` are None. Raises DivergedError if a
        contender diverged at every rate.
        """
        trials = [self.of(name, lr, seed) for seed in self.tuning for name in self.runs for lr in self.rates]
        diverged = _complete(trials, jobs, tolerant=len(self.rates) > 1)
        tried = {name: self._tried(name, diverged) for name in self.runs}
        best = {name: max(found, key=lambda lr: merit(found[lr])) for name, found in tried.items()}
        _complete([self.of(name, best[name], seed) for seed in self.seeds for name in self.runs], jobs, tolerant=False)
        return [self._row(name, best[name], tried[name]) for name in self.runs]

    def _tried(self, name: str, diverged: dict[ConvergenceRun, DivergedError]) -> dict[str, dict[str, Any]]:
        """Return the figures of a contender by learning rate; rates at which a run diverged are left out.

        Raises DivergedError if the contender diverged at every rate.
        """
        found, errors = {}, []
        for lr in self.rates:
            runs = [self.of(name, lr, seed) for seed in self.tuning]
            errors += [diverged[run] for run in runs if run in diverged]
            if not diverged.keys() & set(runs):
                found[lr] = _combined([run.figures() for run in runs])
        if not found:
            raise errors[0]
        return found

    def _row(self, name: str, best: str, tried: dict[str, dict[str, Any]]) -> dict[str, Any]:
        runs = [self.of(name, best, seed) for seed in self.seeds]
        curves = [run.curve() for run in runs]
        found = {f"{float(lr or tried[lr]['lr']):g}": tried.get(lr, {"top1": None, "loss": None}) for lr in self.rates}
        return {
            "run": self.runs[name],
            "name": name,
            "seeds": list(self.seeds),
            **_combined([run.figures() for run in runs]),
            "tried": {lr: figures["top1"] for lr, figures in found.items()},
            "tried_loss": {lr: figures["loss"] for lr, figures in found.items()},
            "curve": mean_curve(curves, self.rate),
            "curves": [[point.as_dict(self.rate) for point in curve] for curve in curves],
        }


def _complete(runs: Sequence[ConvergenceRun], jobs: int, *, tolerant: bool) -> dict[ConvergenceRun, DivergedError]:
    """Train and evaluate `runs`, `jobs` at a time, and return the errors of runs that diverged.

    After a failure no further run begins. If `tolerant`, a divergence does not count as a failure.
    """
    pool = ThreadPoolExecutor(jobs)
    diverged: dict[ConvergenceRun, DivergedError] = {}
    try:
        for each, done in [(each, pool.submit(each.complete)) for each in dict.fromkeys(runs)]:
            try:
                done.result()
            except DivergedError as error:
                if not tolerant:
                    raise
                diverged[each] = error
    finally:
        pool.shutdown(cancel_futures=True)
    return diverged


def _combined(measured: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of runs that differ by their seeds: means, all accuracies, and standard errors of the means.

    Bytes are per worker and step.
    """
    means = {
        name: None if value is None else statistics.fmean(each[name] for each in measured) for name, value in measured[0].items()
    }
    top1, loss = ([each[name] for each in measured] for name in ("top1", "loss"))
    return {**means, "all_top1": top1, "standard_error": mean_and_error(top1)[1], "loss_error": mean_and_error(loss)[1]}


def run(
    runs: Sequence[str],
    common: str,
    *,
    workers: int,
    seeds: Sequence[int],
    output: Path,
    local: bool,
    lrs: Sequence[str] = (),
    jobs: int = 1,
    screen: bool = False,
    evaluate_every: int = 0,
    rate: str | None = None,
) -> dict[str, Any]:
    """Train and evaluate each of `runs`, texts such as "qsgd", "sign=signsgd --lr 0.001" or "ddp:powersgd:rank=2".

    `common`: flags of all runs. `lrs`, `screen`: see `Comparison`. `jobs`: number of simultaneous runs; with more than one, the
    measured times are not comparable. `evaluate_every`: steps between evaluations; 0: one evaluation at the end. `rate`: rate
    of the links for which seconds are estimated. Runs write to `output`/RUN-seed. If a run fails, no further run begins, and
    PsnodeError is raised. A divergence is not a failure while several learning rates are compared.
    """
    pattern = ConvergenceRun((), tuple(shlex.split(common)), 0, workers, local, output, evaluate_every)
    bits = None if rate is None else rate_of(rate)
    comparison = Comparison(named_runs(runs), tuple(seeds), tuple(lrs), screen, pattern, bits)
    comparison.check()
    rows = comparison.rows(jobs)
    return {**hardware(), "workers": workers, "common": common, "rate": rate, "rows": rows}


def main(
    *,
    lrs: Sequence[float],
    json_file: Path | None,
    csv_file: Path | None,
    latex_file: Path | None,
    plot_file: Path | None,
    **comparison: Any,
) -> int:
    """Run the comparison, print its table, write the requested files, and return the exit code."""
    if plot_file is not None:
        check_plot(plot_file)
    result = run(**comparison, lrs=[f"{lr:g}" for lr in lrs])
    print(markdown(result))
    for note in edge_notes(result):
        print(f"psnode: {note}", file=sys.stderr)
    save(result, json_file)
    for file, text in ((csv_file, csv_table(result)), (latex_file, latex(result))):
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    if plot_file is not None:
        draw_curves(result, plot_file)
    return 0
