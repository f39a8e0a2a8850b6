"""examples/charlm.py: the text, its windows, causality, and training of both models."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.task import Data, load_task
from psnode.tasks.data.sampler import Sampler

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "charlm.py")
KINDS = ("lstm", "transformer")


def make(**options: str):
    return load_task(EXAMPLE, options)


@pytest.fixture
def charlm():
    """Return the example as a module."""
    return sys.modules[type(make()).__module__]


def test_the_text_is_long_enough_and_almost_wholly_in_the_alphabet(charlm):
    codes = charlm.encode(charlm.text())
    assert len(codes) > 300_000
    assert (codes == 0).mean() < 0.01
    assert codes.max() < charlm.CLASSES == 97
    assert charlm.encode("\na~ é€").tolist()[-3:] == [96, 0, charlm.encode("?")[0]]


@pytest.fixture
def one_thread():
    """Use one thread: on a busy machine, several threads slow small models down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_targets_are_the_characters_after_their_inputs():
    data = make(length="32").train_data()
    inputs, targets = data.batch(np.arange(len(data)), None)
    assert isinstance(data, Data)
    assert inputs.shape == targets.shape == (len(data), 32)
    assert torch.equal(inputs.flatten()[1:], targets.flatten()[:-1])


def test_the_last_tenth_is_held_out():
    task = make()
    train, held_out = len(task.train_data()), len(task.eval_data())
    assert train / (train + held_out) == pytest.approx(0.9, abs=0.001)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_see_no_later_character(kind):
    torch.manual_seed(0)
    model = make(model=kind, width="32").model().eval()
    text = torch.randint(97, (3, 64))
    changed = text.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 97
    before, after = model(text), model(changed)
    assert before.shape == (3, 64, 97)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40], after[:, 40])


def test_metrics_are_sums_over_characters():
    task = make()
    batch = (None, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    logits = torch.zeros(2, 3, 97)
    logits[0, 0, 1] = 1e-3
    metrics = task.metrics(logits, batch)
    assert task.size(batch) == 6
    assert metrics["top1"] == 1
    assert metrics["bits"] == pytest.approx(6 * math.log2(97), rel=1e-4)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "lr"), [("lstm", 2.0), ("transformer", 0.3)])
def test_loss_falls_below_the_entropy_of_single_characters(kind, lr, charlm, one_thread):
    task = make(model=kind)
    torch.manual_seed(0)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    losses = []
    for [(indices, rng)] in Sampler(len(data), 0, 1, 16).wanted(1, 60):
        optimizer.zero_grad()
        loss, _ = task.loss(model, data.batch(indices, rng))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    shares = np.bincount(charlm.encode(charlm.text())) / len(charlm.text())
    entropy = -sum(p * math.log(p) for p in shares if p > 0)
    assert losses[0] == pytest.approx(math.log(97), abs=0.4)
    assert np.mean(losses[-10:]) < entropy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "gru"}, "model must be lstm or transformer, not 'gru'"),
        ({"depth": "2"}, "unknown task option 'depth': the choices are model, width, layers, length"),
        ({"width": "0"}, "width must be a whole number of at least 1, not '0'"),
        ({"model": "transformer", "width": "30"}, "multiple of 4 for a transformer, not 30"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        make(**options)
