"""Runs resumed with other groups, or from a checkpoint of layout 1: every memory is carried over, tensor by tensor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash

from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.jobs.job import run
from psnode.plans.groups import Plan
from psnode.records import checkpoint, tensorfile
from psnode.records.metrics import read_records
from psnode.tasks.classification import Classification
from tests.feedback.test_conservation import STEPS, Linear
from tests.feedback.test_conservation import config as linear
from tests.records.plain_reader import read

ONE: dict[str, Any] = {"group_by": "model"}
LAYERS: dict[str, Any] = {"group_by": "layer"}
CUT: dict[str, Any] = {"group_by": "bytes", "group_bytes": 1 << 17}


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "dense", "batch_size": 8, "eval_freq": 100, "local": 2, "lr": 0.02, "seed": 3, "network": "FC"}
    settings |= {"threads": 1, "tensorboard": False, "hash_every": 1}
    return Config(train_dir=train_dir, **{**settings, **changed})


def summary(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "summary.json").read_bytes()))


def events(train_dir: Path, name: str) -> list[str]:
    file = train_dir / "events.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [line["reason"] for line in lines if line["event"] == name]


def recorded(train_dir: Path) -> dict[str, Any]:
    return dict(json.loads((train_dir / "config.json").read_bytes()))


def newest(train_dir: Path) -> Path:
    found = checkpoint.latest(train_dir)
    assert found is not None
    return found


def test_the_momentum_of_a_tensor_in_the_file_is_torchs_after_three_steps(tmp_path: Path) -> None:
    """Compare the momentum in the checkpoint of a dense run with one worker with torch's, over the same batches, and with v
    = .9 v + g.
    """
    run(config(tmp_path, local=1, network="LeNet", max_steps=3))
    task = Classification("LeNet", "digits", seed=3)
    torch.manual_seed(3)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    order = np.random.Generator(np.random.PCG64(np.random.SeedSequence((3, int.from_bytes(b"shuf", "big"), 0))))
    shuffled = order.permutation(len(data))
    by_hand: dict[str, np.ndarray] = {}
    for step in range(3):
        loss, _ = task.loss(model, data.batch(shuffled[8 * step : 8 * step + 8], None))
        optimizer.zero_grad()
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            gradient = parameter.grad.numpy().reshape(-1)
            by_hand[name] = np.float32(0.9) * by_hand.get(name, np.zeros_like(gradient)) + gradient
        optimizer.step()
    file = read(newest(tmp_path) / checkpoint.OPTIMIZER)
    assert file.keys() == {f"momentum_buffer/{name}" for name in by_hand}
    for name, parameter in model.named_parameters():
        found = file[f"momentum_buffer/{name}"]
        np.testing.assert_array_equal(found, optimizer.state[parameter]["momentum_buffer"].reshape(-1).numpy(), err_msg=name)
        np.testing.assert_array_equal(found, by_hand[name], err_msg=name)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_dense_run_ends_alike_however_often_its_groups_change(tmp_path: Path, optimizer: str) -> None:
    """Check that the groups do not affect the weights, since sums and updates work per coordinate."""
    run(config(tmp_path / "whole", optimizer=optimizer, max_steps=8, **ONE))
    for end, groups in ((2, ONE), (4, CUT), (6, LAYERS), (8, ONE)):
        run(config(tmp_path / "parts", optimizer=optimizer, max_steps=end, resume=end > 2, **groups))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    told = events(tmp_path / "parts", "replanned")
    assert len(told) == 3
    assert "--group-by is model in the checkpoint but bytes now; --group-bytes is 0 in the checkpoint but 131072 now" in told[0]
    assert recorded(tmp_path / "parts")["plan"] == recorded(tmp_path / "whole")["plan"]


SCHEMES: dict[str, dict[str, Any]] = {
    "topk": {"scheme": "topk"},
    "dgc": {"scheme": "dgc", "sparsity_warmup_epochs": 0.0},
    "signum": {"scheme": "signum"},
    "lss": {"scheme": "lss:refit=5"},
}


@pytest.mark.long
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_coded_run_goes_on_with_other_groups_and_says_what_is_left_out(tmp_path: Path, scheme: str) -> None:
    """Check that the run reports codebooks and norms that it leaves out. Replicas agree after every step. The second plan
    cuts two of the three tensors that have a codebook.
    """
    cap = {} if scheme == "signum" else {"norm_cap": 10.0}  # signum alone has no norms of groups
    run(config(tmp_path, max_steps=3, **cap, **SCHEMES[scheme], **ONE))
    expected = ["codebooks of segments (2)"] * (scheme == "lss") + ["norms of groups (1)"] * (scheme != "signum")
    run(config(tmp_path, max_steps=6, resume=True, **SCHEMES[scheme], **CUT))
    [told] = events(tmp_path, "replanned")
    assert told.endswith(
        f"tensor by tensor; {' and '.join(expected)} are left out, since those are gone" if expected else "tensor"
    )
    assert summary(tmp_path)["stop_reason"] == "completed"
    assert all(np.isfinite(record["loss"]) for record in read_records(tmp_path / "metrics.jsonl"))


def test_nothing_that_is_owed_is_lost_where_tensors_are_compressed_no_more(tmp_path: Path) -> None:
    """Check that the weights have moved by the sum of all gradients after one step with all tensors uncoded. The loss is
    linear.
    """
    task = Linear(2)
    run(linear(tmp_path, "topk", "ef", 2), task)
    assert any(value.any() for value in owed(newest(tmp_path)).values())
    run(linear(tmp_path, "topk", "ef", 2, min_compress_bytes=1 << 20, max_steps=STEPS + 1, resume=True), task)
    assert not any(value.any() for value in owed(newest(tmp_path)).values())
    weights = read(newest(tmp_path) / checkpoint.MODEL)
    for name, gradients in task.gradients.items():
        expected = -(STEPS + 1) * gradients.double().mean(0).numpy()
        np.testing.assert_allclose(weights[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)


def owed(path: Path) -> dict[str, np.ndarray]:
    """Return the residuals of both workers."""
    files = [read(path / checkpoint.worker_file(rank)) for rank in (1, 2)]
    return {
        f"{rank}/{name}": value
        for rank, file in enumerate(files)
        for name, value in file.items()
        if name.startswith("feedback/residual/")
    }


def as_layout_1(train_dir: Path) -> None:
    """Rename the state in the newest checkpoint by group and segment, as earlier versions of psnode did, following the
    recorded plan.
    """
    path, plan = newest(train_dir), Plan.from_dict(recorded(train_dir)["plan"])
    manifest = json.loads((path / "manifest.json").read_bytes())
    for file in manifest["files"]:
        arrays = read(path / file)
        prefix, parts = ("feedback/", plan.segments) if file.startswith("worker-") else ("", plan.groups)
        named = {name: value for name, value in arrays.items() if not name.startswith(prefix)} if prefix else {}
        if file == checkpoint.MODEL:
            continue
        flat: dict[str, np.ndarray] = {}
        for name, value in arrays.items():
            memory, _, tensor = name.removeprefix(prefix).partition("/")
            if name in named:
                continue
            where = plan.slices()[tensor]
            flat.setdefault(memory, np.full(plan.size, np.nan))[where] = value
        for memory, values in flat.items():
            for part in parts:
                own = values[part.start : part.stop]
                if memory == "replica":
                    named["replica"] = values.astype(np.float32)
                elif np.isfinite(own).all():
                    single = {"rate": np.float64, "step": np.float32}.get(memory)
                    named[f"{prefix}{part.index}/{memory}"] = own[:1].astype(single) if single else own.astype(np.float32)
        (path / file).unlink()
        tensorfile.write_tensors(path / file, {name: torch.from_numpy(value.copy()) for name, value in named.items()})
        content = (path / file).read_bytes()
        manifest["files"][file] = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}
    del manifest["layout"], manifest["plan"]
    (path / "manifest.json").write_text(json.dumps(manifest))


OLD: dict[str, dict[str, Any]] = {
    "topk": {"scheme": "topk", "downlink": "qsgd"},
    "dgc": {"scheme": "dgc", "sparsity_warmup_epochs": 0.0, "min_compress_bytes": 1 << 16},
    "adam": {"scheme": "qsgd", "optimizer": "adam", "feedback": "ef"},
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", OLD)
def test_a_checkpoint_of_layout_1_goes_on_bit_for_bit(tmp_path: Path, name: str) -> None:
    """Check that a run continues bit for bit from a checkpoint of layout 1, with groups that cut tensors."""
    changed = {"norm_cap": 0.0, **OLD[name], **CUT}
    run(config(tmp_path / "whole", max_steps=6, **changed))
    run(config(tmp_path / "parts", max_steps=3, **changed))
    as_layout_1(tmp_path / "parts")
    run(config(tmp_path / "parts", max_steps=6, resume=True, **changed))
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]
    assert events(tmp_path / "parts", "replanned") == []
    assert "first_plan" not in recorded(tmp_path / "parts")


def test_layout_1_is_read_by_the_first_plan_of_the_run_also_when_the_job_that_changed_it_left_no_checkpoint(
    tmp_path: Path,
) -> None:
    changed: dict[str, Any] = {"optimizer": "adam", "lr": 0.001, "norm_cap": 0.0}
    run(config(tmp_path / "whole", max_steps=6, **changed, **ONE))
    run(config(tmp_path / "parts", max_steps=3, **changed, **ONE))
    first = recorded(tmp_path / "parts")["plan"]
    as_layout_1(tmp_path / "parts")
    run(config(tmp_path / "parts", max_steps=3, resume=True, **changed, **CUT))  # the run has already reached its end
    assert recorded(tmp_path / "parts")["first_plan"] == first != recorded(tmp_path / "parts")["plan"]
    assert not (newest(tmp_path / "parts") / "manifest.json").read_text().count('"layout"')
    run(config(tmp_path / "parts", max_steps=6, resume=True, **changed, **CUT))
    assert len(events(tmp_path / "parts", "replanned")) == 2
    assert summary(tmp_path / "parts")["model_hash"] == summary(tmp_path / "whole")["model_hash"]


def test_gradients_that_wait_keep_the_run_to_its_groups(tmp_path: Path) -> None:
    run(config(tmp_path, max_steps=3, **ONE))
    path = newest(tmp_path)
    tensorfile.write_tensors(path / checkpoint.WAITING, {"1/4/3/0/0": torch.zeros(8, dtype=torch.uint8)})
    manifest = json.loads((path / "manifest.json").read_bytes())
    content = (path / checkpoint.WAITING).read_bytes()
    manifest["files"][checkpoint.WAITING] = {"bytes": len(content), "xxh3_128": xxhash.xxh3_128_hexdigest(content)}
    (path / "manifest.json").write_text(json.dumps(manifest))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json*")}
    with pytest.raises(
        ConfigurationError, match=r"gradients that wait .* \(--group-by is model .* layer now\): leave that setting"
    ):
        run(config(tmp_path, max_steps=6, resume=True, **LAYERS))
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json*")} == before


def test_a_newer_layout_is_refused_and_nothing_changed(tmp_path: Path) -> None:
    run(config(tmp_path, max_steps=2))
    manifest = newest(tmp_path) / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"layout": 2', '"layout": 3'))
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.json*")}
    with pytest.raises(CheckpointError, match="has layout 3"):
        run(config(tmp_path, max_steps=4, resume=True))
    assert {file: file.read_bytes() for file in tmp_path.rglob("*.json*")} == before
