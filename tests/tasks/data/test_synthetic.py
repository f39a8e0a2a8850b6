"""Synthetic images: any shape, equal for equal seeds, and learnable."""

import numpy as np
import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.tasks.data import describe, load

SMALL = {"shape": "2,9,5", "classes": "4", "examples": "300"}


@pytest.mark.parametrize("shape", ["1,1,1", "3,32,32", "2x9x5", "3,224,160"])
def test_any_shape(shape):
    channels, height, width = map(int, shape.replace("x", ",").split(","))
    data = load("synthetic", options={"shape": shape, "classes": "5", "examples": "20"})
    assert describe("synthetic", options={"shape": shape, "classes": "5"}) == (data.image_shape, data.classes)
    images, labels = data.batch(np.array([19, 0]), None)
    assert (images.shape, images.dtype) == ((2, channels, height, width), torch.float32)
    assert (labels.shape, labels.dtype) == ((2,), torch.int64)
    assert len(data) == 20


def test_patterns_enlarged_batch_by_batch_are_those_kept_enlarged(monkeypatch):
    indices = np.arange(50)
    kept = load("synthetic", options=SMALL).batch(indices, None)[0]
    monkeypatch.setattr("psnode.tasks.data.synthetic._MOST_VALUES", 0)
    assert torch.equal(load("synthetic", options=SMALL).batch(indices, None)[0], kept)


def test_equal_seeds_give_equal_data_whatever_was_asked_before():
    first, same, other = (load("synthetic", seed=seed, options=SMALL) for seed in (1, 1, 2))
    first.batch(np.arange(100), np.random.default_rng(0))
    indices = np.array([7, 299, 7])
    (x, y), (same_x, same_y), (other_x, _) = (data.batch(indices, None) for data in (first, same, other))
    assert torch.equal(x, same_x)
    assert torch.equal(y, same_y)
    assert not torch.equal(x, other_x)


def test_all_classes_occur_about_equally():
    _, labels = load("synthetic", options=SMALL | {"examples": "4000"}).batch(np.arange(4000), None)
    # binomial with standard deviation 27.4: five of them
    assert np.abs(np.bincount(labels, minlength=4) - 1000).max() < 137


def test_images_differ_within_a_class_and_between_the_parts():
    train, test = (load("synthetic", train=part, options=SMALL) for part in (True, False))
    images, _ = train.batch(np.arange(64), None)
    assert len({image.numpy().tobytes() for image in images}) == 64
    held_out, _ = test.batch(np.arange(64), None)
    assert not {image.numpy().tobytes() for image in images} & {image.numpy().tobytes() for image in held_out}


def test_the_class_can_be_learned_from_the_training_part():
    train, test = (load("synthetic", train=part, options={"shape": "3,16,16"}) for part in (True, False))
    images, labels = train.batch(np.arange(2000), None)
    centres = torch.stack([images[labels == c].mean(dim=0) for c in range(10)]).flatten(1)
    held_out, wanted = test.batch(np.arange(500), None)
    nearest = torch.cdist(held_out.flatten(1), centres).argmin(dim=1)
    assert float((nearest == wanted).float().mean()) > 0.95


@pytest.mark.parametrize(
    ("option", "value"), [("shape", "3,32"), ("shape", "3,0,2"), ("classes", "0"), ("classes", "ten"), ("examples", "-5")]
)
def test_wrong_values_are_refused(option, value):
    with pytest.raises(ConfigurationError, match=f"{option} must be .*not '{value}'"):
        load("synthetic", options={option: value})
