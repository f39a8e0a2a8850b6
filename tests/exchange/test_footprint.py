"""Predicted memory: vectors of each role, counted by hand; a job that cannot fit is refused before it starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.exchange.footprint import Footprint, Use, footprint, optimizer_vectors
from psnode.exchange.machine import Machine
from psnode.jobs.dry_run import dry_run
from psnode.jobs.job import run
from psnode.master.start.startup import require_memory
from psnode.plans.coding import Coding
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import plan_of
from psnode.protocol.messages import Ready

SIZE = 1 << 20
GATHERED = "state of all ranks, for a checkpoint"
TENSORS = [Tensor("w", (1024, 1024))]


def need(scheme: str, workers: int = 1, **settings: object) -> Footprint:
    config = Config(scheme=scheme, **settings)  # type: ignore[arg-type]
    found = resolve(config)
    return footprint(Coding(plan_of(TENSORS, found, config), found), config, workers)


def vectors(uses: tuple[object, ...], vector: int) -> dict[str, float]:
    return {use.purpose: round(use.nbytes / vector, 2) for use in uses}  # type: ignore[attr-defined]


def test_error_feedback_keeps_weights_gradient_and_residual_on_a_worker() -> None:
    """Check the vectors of a worker and of the master. One coordinate in 100, as topk sends it, takes 1.25 % of float32's
    bytes: 32 bits for the value, and about eight for the index.
    """
    found = need("topk", workers=3)
    assert found.vector == 4 * SIZE
    worker = vectors(found.worker, found.vector)
    assert (worker["weights"], worker["gradient"], worker["memory residual"]) == (1, 1, 1)
    assert found.worker_bytes < 3.05 * found.vector
    master = vectors(found.master, found.vector)
    assert sum(value == 1 for value in master.values()) == 3  # weights, the sum, and y; there is no momentum
    assert found.master_bytes < 3.1 * found.vector


def test_a_dense_downlink_has_no_y_but_frames_of_all_weights() -> None:
    found = need("dense", workers=2, momentum=0.0)
    assert vectors(found.master, found.vector) == {
        "weights": 1, "sum of the gradients": 1, "gradients that come in, coded": 2, "weights that go out": 1,
    }  # fmt: skip
    assert found.worker_bytes == pytest.approx(5 * found.vector, rel=1e-3)


def test_a_downlink_that_leads_takes_a_vector_of_the_masters() -> None:
    usual, leading = need("polar-2bit"), need("polar-2bit", downlink_lead=0.3)
    assert leading.master_bytes - usual.master_bytes == usual.vector
    assert leading.worker == usual.worker


@pytest.mark.parametrize(
    ("optimizer", "expected"), [("adamw", 2.0), ("adadelta", 2.0), ("adagrad", 1.0), ("rprop", 2.0), ("asgd", 1.0)]
)
def test_memories_of_optimizers_are_those_of_their_papers(optimizer: str, expected: float) -> None:
    config = Config(scheme="dense", optimizer=optimizer)
    assert optimizer_vectors(Coding(Plan(tuple(TENSORS), ()), resolve(config)), config) == expected


def test_workers_that_update_all_weights_hold_all_that_a_master_would() -> None:
    """Check `gather`: a worker also holds Adam's two memories and the coded gradients of three workers; the master keeps the
    weights only for checkpoints.

    For a checkpoint the master gets weights and memories in one answer, which it holds as a frame, as a file and as tensors.
    A worker packs this answer.
    """
    settings = {"optimizer": "adam", "downlink": "dense"}
    central, copied = (need("topk", workers=3, topology=topology, **settings) for topology in ("star", "gather"))
    assert vectors(copied.master, copied.vector) == {"weights": 1, GATHERED: 3 * 3}
    assert copied.worker_bytes == central.worker_bytes + central.master_bytes + 3 * central.vector
    assert vectors(copied.worker, copied.vector)["to update: memories of adam"] == 2


def test_a_master_with_a_part_of_the_weights_holds_that_part_of_all_that_updates_them() -> None:
    """Check a mesh of three workers, whose master has two of five parts of the weights, and each worker one part.

    For a checkpoint the master gathers x, y and two memories of AdamW, in answers of a fifth of these; it holds one answer
    three times. A worker packs its fifth.
    """
    settings = {"optimizer": "adamw", "lr": 0.001}
    central, dealt = (need("topk", workers=3, topology=topology, **settings) for topology in ("star", "mesh:master=auto"))
    assert dealt.master_bytes == pytest.approx((1 + 4 + 3 * 4 / 5) * central.vector + 2 / 5 * central.master_bytes)
    assert dealt.worker_bytes == pytest.approx(central.worker_bytes + 1 / 5 * (central.master_bytes + 4 * central.vector))


def test_servers_hold_equal_parts_of_all_that_updates_weights_and_workers_hold_none() -> None:
    central, served = (need("topk", workers=3, topology=topology) for topology in ("star", "sharded:servers=4"))
    part = central.vector + central.master_bytes / 4
    gathered = (2 + 3 * 2 / 4) * central.vector  # x and y, and three times the answer of one server
    packed = 2 / 4 * central.vector
    assert (served.master_bytes, served.server_bytes) == pytest.approx((part + gathered, part + packed))
    assert served.worker == central.worker
    assert central.server == ()


def test_a_host_counts_what_its_servers_hold() -> None:
    """Check the memory needed on a host with two servers, ranks 2 and 3, each of which holds more than a worker."""
    found = Footprint(10, (), (Use("worker", 20.0),), (Use("server", 50.0),))
    require_memory(found, {1: ready("a", 10), 2: ready("b", 80), 3: ready("b", 80)}, {2, 3})
    with pytest.raises(ConfigurationError, match=r"^2 ranks on b will need .* and 0.08 kB are left there"):
        require_memory(found, {1: ready("a", 10), 2: ready("b", 79), 3: ready("b", 79)}, {2, 3})


def test_adafactor_keeps_a_row_and_a_column() -> None:
    config = Config(scheme="dense", optimizer="adafactor")
    assert optimizer_vectors(Coding(Plan(tuple(TENSORS), ()), resolve(config)), config) < 0.1


def table() -> str:
    """Return the table of docs/memory.md, for a model with almost all values compressed and four workers."""
    tensors = [Tensor("embedding", (8192, 512)), Tensor("mlp", (512, 2048)), Tensor("attention", (512, 1536))]
    lines = ["| scheme | master, SGD | master, AdamW | worker |", "|---|---:|---:|---:|"]
    for name, scheme in SCHEMES.items():
        row = []
        for settings in ({}, {"optimizer": "adamw", "lr": 0.001}):
            config = Config(scheme=name, **settings)  # type: ignore[arg-type]
            if settings and scheme.aggregator == "majority":  # this is refused, since Adam would divide a vote by its size
                row.append("-")
                continue
            found = resolve(config)
            each = footprint(Coding(plan_of(tensors, found, config), found), config, workers=4)
            row.append(f"{each.master_bytes / each.vector:.1f}")
        lines.append(f"| {name} | {' | '.join(row)} | {each.worker_bytes / each.vector:.1f} |")
    return "\n".join(lines) + "\n"


def test_the_page_about_memory_has_the_figures_of_every_scheme() -> None:
    assert table() in (Path(__file__).parents[2] / "docs" / "memory.md").read_text()


def ready(host: str, free: int | None) -> Ready:
    return Ready([["w", [1024, 1024]]], None, 8, True, host=host, free=free)


def test_a_host_whose_ranks_do_not_fit_is_named() -> None:
    """Check that the error names a host whose two workers do not fit. A worker needs 3.03 vectors of 4 MiB, one of which,
    its model, is already in memory.
    """
    found = need("topk", workers=3)
    fits = int(2 * 2.1 * found.vector)
    require_memory(found, {1: ready("a", fits), 2: ready("a", fits), 3: ready("b", None)})
    with pytest.raises(ConfigurationError, match=r"2 ranks on a will need .* and 8\.39 MB are left there"):
        require_memory(found, {1: ready("a", 2 * found.vector), 2: ready("a", fits), 3: ready("b", None)})


def test_the_master_counts_on_its_own_host(monkeypatch: pytest.MonkeyPatch) -> None:
    found = need("topk")
    monkeypatch.setattr("psnode.master.start.startup.free_memory", lambda: 4 * found.vector)
    here = Machine.here().host
    with pytest.raises(ConfigurationError, match=f"2 ranks on {here}"):
        require_memory(found, {1: ready(here, 4 * found.vector)})
    monkeypatch.setattr("psnode.master.start.startup.free_memory", lambda: 6 * found.vector)
    require_memory(found, {1: ready(here, 6 * found.vector)})


def test_a_job_that_does_not_fit_ends_before_its_first_step_unless_told_not_to_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psnode.worker.handshake.free_memory", lambda: 1000)
    config = Config(local=1, max_steps=1, batch_size=2, train_dir=tmp_path, threads=1, quiet=True, tensorboard=False)
    with pytest.raises(ConfigurationError, match="psnode train --dry-run"):
        run(config)
    assert not (tmp_path / "metrics.jsonl").exists()
    assert run(replace(config, memory_check=False)) == 0


def test_a_dry_run_lists_what_a_job_would_take() -> None:
    text = dry_run(Config(scheme="topk", optimizer="adamw", lr=0.001), workers=3)
    assert "431,080 parameters" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["memories", "of", "adamw", "2.00", "3.45", "MB"] in lines
    master, worker = (float(line[-3]) for line in lines if line[:1] == ["all"])
    assert 5 < master < 5.1 and 3 < worker < 3.05
    assert max(map(len, text.splitlines())) <= 80
