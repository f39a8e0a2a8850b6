"""Steps whose passes the caller runs: they equal plain PyTorch's, or are refused with a one-line error."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from psnode.config import Config
from psnode.errors import NonFiniteLossError, PsnodeError
from psnode.jobs.job import hello
from psnode.master import lead
from psnode.protocol.channel import FrameChannel
from psnode.records import checkpoint
from psnode.records.metrics import read_records
from psnode.records.weights import weights_of
from psnode.tasks.data.loader import Streamed
from psnode.tasks.own_loop import OwnLoop
from psnode.transport.barrier import send_hello
from psnode.transport.loopback import loopback_group
from psnode.worker.handshake import join
from psnode.worker.stepwise import StepwiseWorker

WIDTH, CLASSES = 6, 3


class Net(nn.Module):
    """A network with one layer that is used and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.used, self.unused = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(5)
    return [(torch.randn(4, WIDTH, generator=generator), torch.randint(CLASSES, (4,), generator=generator)) for _ in range(6)]


@contextlib.contextmanager
def stepping(
    folder: Path, model: nn.Module, *, holds: bool = False, beside: Iterable[nn.Parameter] = (), **changed: Any
) -> Iterator[StepwiseWorker]:
    """Yield a worker that steps through `batches`, with a master in a thread."""
    settings = {"scheme": "dense", "lr": 0.1, "momentum": 0.9, "batch_size": 4, "max_steps": 6, "eval_freq": 0, **changed}
    config = Config(train_dir=folder, threads=1, tensorboard=False, overlap=False, group_bytes=1 << 20, **settings)
    ends = loopback_group(2)
    whole = OwnLoop(copy.deepcopy(model), None, None)
    codes: list[int] = []
    master = threading.Thread(target=lambda: codes.append(lead(ends[0], config, lambda agreed: whole, hello())))
    master.start()
    send_hello(ends[1], hello())
    task = OwnLoop(model, Streamed(batches(), 24), None)
    link = FrameChannel(ends[1], watched={0})
    worker = join(link, 300, lambda agreed: task, contextlib.nullcontext())
    stepwise = StepwiseWorker(worker, holds=holds, beside=beside)
    try:
        yield stepwise
        assert stepwise.over
        stepwise.leave()
    finally:
        stepwise.close()
        ends[1].die("the test is over")
        master.join()
    assert codes == [0]


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


@pytest.mark.parametrize(
    ("count", "rule"),
    [
        (1, {}),
        (2, {}),
        (1, {"consistency": "kofn", "num_aggregate": 1}),
        (1, {"consistency": "asp"}),
        (1, {"clip_grad_norm": 0.3}),
    ],
    ids=str,
)
def test_steps_are_those_of_plain_sgd_also_where_batches_are_accumulated(
    tmp_path: Path, count: int, rule: dict[str, Any]
) -> None:
    plain, model, steps = Net(), Net(), 6 // count
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    losses, clipped = [], 0
    for step in range(steps):
        optimizer.zero_grad()
        mean = torch.stack([loss_of(plain, batch) for batch in batches()[count * step : count * step + count]]).mean()
        mean.backward()
        clipped += float(nn.utils.clip_grad_norm_(plain.parameters(), rule.get("clip_grad_norm", torch.inf))) > 0.3
        optimizer.step()
        losses.append(float(mean.detach()))
    with stepping(tmp_path, model, batches_per_step=count, max_steps=steps, **rule) as worker:
        for step in range(steps):
            for index in range(count):
                loss = loss_of(model, worker.draw())
                (loss / count).backward()
                assert worker.step(loss, {}) == (index == count - 1)
            assert worker.version == step + 1
        assert worker.draw() is None
    assert clipped  # only some steps are clipped
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-5, atol=1e-6)
    assert [record["loss"] for record in read_records(tmp_path / "metrics.jsonl")] == pytest.approx(losses, rel=1e-5)
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())  # the program owns the model again


def test_losses_need_not_be_told_and_no_checkpoint_is_judged_then(tmp_path: Path) -> None:
    model = Net()
    with stepping(tmp_path, model, eval_freq=2) as worker:
        while (batch := worker.draw()) is not None:
            loss_of(model, batch).backward()
            worker.step(None, {})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail)["loss"] for line in lines] == [None] * 6  # strict JSON has no NaN
    facts = [checkpoint.Checkpoint.open(path).facts for path in checkpoint.complete(tmp_path)]
    assert [fact["step"] for fact in facts] == [2, 4, 6]
    assert [fact["sound"] for fact in facts] == [None] * 3


def test_examples_of_a_batch_are_the_loaders_or_those_of_its_first_tensor() -> None:
    image = torch.zeros(3, 8, 8)
    # as detection data are collated: the length of a tensor is 3
    assert OwnLoop(Net(), None, None, examples=5).size([[image] * 5, {}]) == 5
    assert OwnLoop(Net(), None, None).size(UserDict(ids=torch.zeros(4, 7))) == 4
    assert OwnLoop(Net(), None, None).size(("no", "tensor")) == 1


def test_an_optimizer_of_another_model_steps_beside_the_session_and_of_this_one_behind_it(tmp_path: Path) -> None:
    model, other = Net(), Net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    with stepping(tmp_path, model, beside=other.parameters(), max_steps=1) as worker:
        batch = worker.draw()
        (loss_of(model, batch) + loss_of(other, batch)).backward()
        optimizer.step()
        worker.step(None, {})
    before = [parameter.detach().clone() for parameter in (model.used.weight, other.used.weight, Net().used.weight)]
    assert not torch.equal(before[1], before[2])
    loss_of(model, batches()[0]).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert not torch.equal(model.used.weight, before[0])


def test_a_run_may_be_ended_early_by_the_program(tmp_path: Path) -> None:
    model = Net()
    with stepping(tmp_path, model, max_steps=100) as worker:
        while (batch := worker.draw()) is not None:
            loss_of(model, batch).backward()
            worker.step(None, {})
            if worker.version == 3:
                worker.stop()
    ended = json.loads((tmp_path / "summary.json").read_bytes())
    assert (ended["steps"], ended["stop_reason"], ended["exit_code"]) == (4, "enough", 0)


def no_backward(worker: StepwiseWorker, model: nn.Module) -> None:
    worker.draw()
    worker.step(None, {})


def two_backwards(worker: StepwiseWorker, model: nn.Module) -> None:
    batch = worker.draw()
    loss_of(model, batch).backward()
    loss_of(model, batch).backward()
    worker.step(None, {})


def passed_over(worker: StepwiseWorker, model: nn.Module) -> None:
    worker.draw()
    worker.draw()


def no_batch(worker: StepwiseWorker, model: nn.Module) -> None:
    worker.step(None, {})


def scaled_and_not_told(worker: StepwiseWorker, model: nn.Module) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, worker.draw())).backward()
    worker.step(None, {})


def scaled_and_told_as_a_number(worker: StepwiseWorker, model: nn.Module) -> None:
    loss = loss_of(model, worker.draw())
    (loss * 7).backward()
    worker.step(float(loss.detach()), {})


def early_gradient(worker: StepwiseWorker, model: nn.Module) -> None:
    loss_of(model, batches()[0]).backward()
    worker.draw()


def written(worker: StepwiseWorker, model: nn.Module) -> None:
    batch = worker.draw()
    loss_of(model, batch).backward()
    with torch.no_grad():
        model.get_parameter("used.weight").mul_(0.5)
    worker.step(None, {})


def frozen(worker: StepwiseWorker, model: nn.Module) -> None:
    batch = worker.draw()
    model.get_parameter("used.bias").requires_grad_(False)
    loss_of(model, batch).backward()
    worker.step(None, {})


def other_optimizer(worker: StepwiseWorker, model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters())
    loss_of(model, worker.draw()).backward()
    optimizer.step()
    worker.step(None, {})


def sparse_gradient(worker: StepwiseWorker, model: nn.Module) -> None:
    worker.draw()
    functional.embedding(torch.tensor([0]), model.get_parameter("used.weight"), sparse=True).sum().backward()  # type: ignore[no-untyped-call]


def no_scalar(worker: StepwiseWorker, model: nn.Module) -> None:
    loss_of(model, worker.draw()).backward()
    worker.step(torch.ones(2), {})


def no_metric(worker: StepwiseWorker, model: nn.Module) -> None:
    loss_of(model, worker.draw()).backward()
    worker.step(None, {"top1": "many"})


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (no_backward, r"s\.step\(\) without loss\.backward\(\)"),
        (two_backwards, r"parameter used\.\w+ got another gradient .* call loss\.backward\(\) once"),
        (passed_over, r"a batch was passed over"),
        (no_batch, r"s\.step\(\) without a batch"),
        (scaled_and_not_told, r"scaled by a GradScaler.* bfloat16"),
        (scaled_and_told_as_a_number, r"backward began from 7 times the loss"),
        (early_gradient, r"parameter used\.weight has a gradient before the step's own"),
        (written, r"parameter used\.weight"),
        (frozen, r"parameter used\.bias was frozen"),
        (other_optimizer, r"an optimizer of the program's own \(Adam\) steps .* remove its step\(\)"),
        (sparse_gradient, r"parameter used\.weight has sparse gradients: use a dense embedding"),
        (no_metric, r"metric 'top1' is no number"),
        (no_scalar, r"the loss of s\.step must be one number, the mean over the batch"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_what_is_no_step_is_refused_in_one_line(
    mistake: Callable[[StepwiseWorker, nn.Module], None], text: str, tmp_path: Path
) -> None:
    def run() -> None:
        model = Net()
        with stepping(tmp_path, model) as worker:
            loss_of(model, worker.draw()).backward()
            worker.step(None, {})
            mistake(worker, model)

    with pytest.raises(PsnodeError, match=text) as caught:
        run()
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_loss_that_is_not_finite_is_told_with_rank_and_step(tmp_path: Path) -> None:
    def run() -> None:
        with stepping(tmp_path, Net()) as worker:
            worker.draw()
            worker.step(torch.tensor(torch.nan), {})

    with pytest.raises(NonFiniteLossError, match="loss is nan on rank 1 at step 1"):
        run()


@pytest.mark.parametrize("count", [1, 2])
def test_weighed_steps_are_those_of_plain_sgd_on_the_joined_examples(tmp_path: Path, count: int) -> None:
    """Check that weighed steps equal plain SGD on the joined examples, if only the first n examples of a batch count and n
    differs from batch to batch.
    """
    counts, plain, model, steps = [4, 1, 3, 2, 1, 4], Net(), Net(), 6 // count
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        chosen = list(zip(batches(), counts, strict=True))[count * step : count * step + count]
        joined = [torch.cat([batch[part][:n] for batch, n in chosen]) for part in (0, 1)]
        optimizer.zero_grad()
        loss = loss_of(plain, joined)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    with stepping(tmp_path, model, batches_per_step=count, max_steps=steps, weighted_mean=True) as worker:
        for n in counts:
            batch = worker.draw()
            assert batch is not None
            loss = loss_of(model, [part[:n] for part in batch])
            worker.backward(loss, n)
            worker.step(loss, {})
        assert worker.draw() is None
    for name, weight in plain.named_parameters():
        torch.testing.assert_close(dict(model.named_parameters())[name].detach(), weight.detach(), rtol=1e-5, atol=1e-6)
    assert [record["loss"] for record in read_records(tmp_path / "metrics.jsonl")] == pytest.approx(losses, rel=1e-5)


def test_a_backward_pass_without_weights_accumulates_by_itself(tmp_path: Path) -> None:
    """Check that s.backward(loss) equals (loss / batches_per_step).backward()."""
    found = []
    for own in (True, False):
        model = Net()
        with stepping(tmp_path / str(own), model, batches_per_step=2, max_steps=3) as worker:
            while (batch := worker.draw()) is not None:
                loss = loss_of(model, batch)
                worker.backward(loss, None) if own else (loss / 2).backward()
                worker.step(loss, {})
        found.append([weight.detach().clone() for weight in model.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("weighted", "weight", "why"),
    [(True, 1.5, "whole number"), (True, -1, "whole number"), (True, "all", "whole number"), (False, 3, "weighted_mean=True")],
)
def test_weights_that_cannot_be_are_refused(tmp_path: Path, weighted: bool, weight: Any, why: str) -> None:
    model = Net()
    with (
        pytest.raises(PsnodeError, match=why),
        stepping(tmp_path, model, weighted_mean=weighted, max_steps=1) as worker,
    ):
        worker.backward(loss_of(model, worker.draw()), weight)


def test_a_plain_backward_pass_in_a_weighted_session_is_refused(tmp_path: Path) -> None:
    model = Net()

    def run() -> None:
        with stepping(tmp_path, model, weighted_mean=True) as worker:
            loss = loss_of(model, worker.draw())
            loss.backward()
            worker.step(loss, {})

    with pytest.raises(PsnodeError, match=r"s\.backward\(loss, weight=n\)"):
        run()


class Tied(nn.Module):
    """Two layers with a shared weight, and running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.one, self.two = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.two.weight = self.one.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.two(self.one(self.norm(x)))
        return out


@pytest.mark.parametrize("ends", ["well", "by an exception"])
def test_after_a_session_each_parameter_owns_its_memory_and_tied_ones_stay_tied(ends: str, tmp_path: Path) -> None:
    model = Tied()
    with contextlib.suppress(KeyError), stepping(tmp_path, model, max_steps=2) as worker:
        while (batch := worker.draw()) is not None:
            loss_of(model, batch).backward()
            worker.step(None, {})
            if ends != "well":
                raise KeyError
    assert model.one.weight is model.two.weight
    owners = {value.untyped_storage().data_ptr(): value for value in (*model.parameters(), *model.buffers())}
    assert len(owners) == len(list(model.parameters())) + len(list(model.buffers()))
    assert all(value.untyped_storage().nbytes() == value.nbytes for value in owners.values())


def test_parameters_that_two_losses_reach_are_found_when_they_come_and_inputs_are_none(tmp_path: Path) -> None:
    model, centres = Net(), nn.Parameter(torch.ones(CLASSES))

    def run() -> None:
        with stepping(tmp_path, model) as worker:
            batch = worker.draw()
            assert batch is not None
            loss_of(model, (batch[0].requires_grad_(), batch[1])).backward()
            worker.step(None, {})
            (loss_of(model, worker.draw()) + centres.sum()).backward()

    with pytest.raises(PsnodeError, match=r"the loss reaches centres \(3\).*nn\.ModuleList.*beside="):
        run()


def test_no_batch_is_left_to_a_run_that_went_further_than_it_is_to_go(tmp_path: Path) -> None:
    starts: tuple[dict[str, Any], ...] = ({"max_steps": 4}, {"max_steps": 2, "resume": True})
    for settings in starts:
        model = Net()
        with stepping(tmp_path, model, **settings) as worker:
            left = worker.batches_left
            while (batch := worker.draw()) is not None:
                loss = loss_of(model, batch)
                loss.backward()
                worker.step(loss, {})
    assert left == 0


class Normed(Net):
    """A network with batch norm, whose statistics depend on the worker's own data."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.norm(x))


def test_the_checkpoint_of_the_best_evaluation_holds_weights_and_statistics_of_that_step(tmp_path: Path) -> None:
    model, found, kept = Normed(), [], {}
    with stepping(tmp_path, model) as worker:
        while (batch := worker.draw()) is not None:
            loss = loss_of(model, batch)
            loss.backward()
            worker.step(loss, {})
            found.append(worker.evaluated(abs(worker.version - 4) + 1.0, {}, 0, 0.0))
            if worker.version == 4:
                kept = {name: value.clone() for name, value in model.state_dict().items()}
    assert found == [True, True, True, True, False, False]
    step, tensors = weights_of(tmp_path, "best")
    assert step == 4
    assert tensors.keys() == kept.keys()
    assert all(torch.equal(tensors[name], value) for name, value in kept.items())


def test_an_evaluation_is_refused_within_a_step_after_the_end_and_with_figures_that_are_none(tmp_path: Path) -> None:
    model = Net()
    with stepping(tmp_path, model, batches_per_step=2, max_steps=1) as worker:
        assert worker.evaluated(torch.tensor(2.0), {"top1": 0.5}, 4, 0.5)
        for wrong, text in (({"top1": 50.0}, "fraction from 0 to 1, not 50"), ({"bleu": "high"}, "metric 'bleu' is no number")):
            with pytest.raises(PsnodeError, match=text):
                worker.evaluated(1.0, wrong, 0, 0.0)
        for taken in (False, True):
            batch = worker.draw()
            for _ in range(2 - taken):
                with pytest.raises(PsnodeError, match=r"within a step: call it after s\.step\(\) has returned True"):
                    worker.evaluated(1.0, {}, 0, 0.0)
            loss = loss_of(model, batch)
            worker.backward(loss, None)
            assert worker.step(loss, {}) is taken
        assert not worker.evaluated(1.0, {"top1": 0.25}, 0, 0.0)
        assert worker.draw() is None
        worker.leave()
        with pytest.raises(PsnodeError, match="after the end of the run"):
            worker.evaluated(1.0, {}, 0, 0.0)
    assert [(record["step"], record["top1"]) for record in read_records(tmp_path / "evaluations.jsonl")] == [(0, 0.5), (1, 0.25)]
