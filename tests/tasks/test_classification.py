"""The built-in task: loss, metrics, refusals, and learning."""

import math

import numpy as np
import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.tasks.classification import Classification
from psnode.tasks.data.prefetch import Prefetch
from psnode.tasks.data.sampler import Sampler


class Fixed(torch.nn.Module):
    """A model that returns the same logits for any input."""

    def __init__(self, logits) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(torch.tensor(logits))

    def forward(self, images):
        return self.logits


@pytest.fixture(scope="module")
def task() -> Classification:
    return Classification("LeNet", "digits")


@pytest.fixture
def one_thread():
    """Use one thread: on a busy machine, several threads slow small models down."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_loss_is_the_mean_cross_entropy(task):
    logits = np.random.default_rng(0).standard_normal((6, 10))
    labels = np.array([0, 1, 2, 3, 4, 9])
    loss, outputs = task.loss(Fixed(logits), (torch.zeros(6, 1, 28, 28), torch.from_numpy(labels)))
    expected = np.mean([math.log(np.exp(row).sum()) - row[label] for row, label in zip(logits, labels, strict=True)])
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert loss.requires_grad
    assert not outputs.requires_grad


def test_loss_is_float32_for_a_model_of_half_precision(task):
    loss, outputs = task.loss(Fixed(np.zeros((2, 10))).bfloat16(), (torch.zeros(2, 1, 28, 28), torch.tensor([1, 2])))
    assert (loss.dtype, outputs.dtype) == (torch.float32, torch.float32)
    assert loss.item() == pytest.approx(math.log(10))


def test_metrics_count_labels_among_the_likeliest_and_the_five_likeliest(task):
    outputs = torch.tensor([[9.0, 8, 7, 6, 5, 4, 3, 2, 1, 0]]).repeat(6, 1)
    batch = (None, torch.tensor([0, 0, 1, 4, 5, 9]))
    assert task.metrics(outputs, batch) == {"top1": 2.0, "top5": 4.0}
    assert task.size(batch) == 6


def test_with_fewer_than_five_classes_top5_counts_everything():
    few = Classification("fc", "synthetic", options={"shape": "1,2,2", "classes": "3", "examples": "10"})
    assert few.metrics(torch.eye(3), (None, torch.tensor([0, 2, 1]))) == {"top1": 1.0, "top5": 3.0}


def test_names_are_resolved_and_the_model_fits_the_data():
    task = Classification("Res_Net-20", "SYNTHETIC", options={"shape": "2,16,12", "classes": "6"})
    assert (task.network, task.dataset) == ("resnet-20", "synthetic")
    images, _ = task.train_data().batch(np.arange(3), None)
    assert task.model()(images).shape == (3, 6)


def test_training_and_evaluation_data_are_different_parts(task):
    assert (len(task.train_data()), len(task.eval_data())) == (1437, 360)


def test_the_evaluation_part_is_touched_only_when_it_is_asked_for(tmp_path):
    from PIL import Image

    (tmp_path / "train" / "a").mkdir(parents=True)
    Image.fromarray(np.zeros((32, 32, 3), np.uint8)).save(tmp_path / "train" / "a" / "0.png")
    task = Classification("resnet-20", "imagefolder", tmp_path)
    assert len(task.train_data()) == 1
    with pytest.raises(ConfigurationError, match="no folder test or val"):
        task.eval_data()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("LeNot", "digits"), "unknown network 'LeNot': did you mean lenet"),
        (("LeNet", "digit"), "unknown data set 'digit': did you mean digits"),
        (("VGG11", "digits"), "vgg-11 takes images of at least 32x32, but the data set's are 28x28"),
        (("LeNet", "mnist"), "name its directory with --data-dir"),
        (("LeNet", "mnist", "absent"), "absent is not a directory"),
    ],
)
def test_what_cannot_be_trained_is_refused_at_once(arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        Classification(*arguments)


@pytest.mark.long
def test_lenet_learns_the_digits_with_plain_sgd(task, one_thread):
    torch.manual_seed(1)
    model, train, held_out = task.model(), task.train_data(), task.eval_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Prefetch(train, Sampler(len(train), 0, 1, 32, seed=1), 0, 250) as batches:
        for [batch] in batches:
            optimizer.zero_grad()
            task.loss(model, batch)[0].backward()
            optimizer.step()
    batch = held_out.batch(np.arange(len(held_out)), None)
    with torch.no_grad():
        _, outputs = task.loss(model.eval(), batch)
    assert task.metrics(outputs, batch)["top1"] / task.size(batch) >= 0.95
