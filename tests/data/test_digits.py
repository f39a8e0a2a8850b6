"""The embedded digits: the split, the resizing and the statistics."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from psnode.data import load
from psnode.data.digits import STATISTICS, resize, stratified_split


@pytest.fixture(scope="module")
def parts():
    return load("digits", train=True), load("digits", train=False)


def test_1437_train_and_360_test_images_of_28x28(parts):
    for part, count in zip(parts, (1437, 360), strict=True):
        assert (len(part), part.image_shape, part.classes) == (count, (1, 28, 28), 10)
        assert part.batch(np.arange(count), None)[0].shape == (count, 1, 28, 28)


def test_parts_are_disjoint_and_together_everything(parts):
    everything = sorted(row.tobytes() for row in resize(load_digits().images))
    assert sorted(row.tobytes() for part in parts for row in part.pixels) == everything


def test_every_digit_has_its_share_of_the_test_part(parts):
    train, test = (np.bincount(part.labels, minlength=10) for part in parts)
    shares = (train + test) * 360 / 1797
    assert np.all(np.abs(test - shares) < 1)


def test_labels_belong_to_their_images(parts):
    source = load_digits()
    known = dict(zip((row.tobytes() for row in resize(source.images)), source.target, strict=True))
    for part in parts:
        assert [known[row.tobytes()] for row in part.pixels] == part.labels.tolist()


def test_the_split_is_the_same_for_every_seed(parts):
    other = load("digits", train=False, seed=99)
    assert np.array_equal(other.pixels, parts[1].pixels)


def test_statistics_are_those_of_the_training_part(parts):
    pixels = parts[0].pixels / 255.0
    assert STATISTICS.mean[0] == pytest.approx(pixels.mean(), abs=5e-5)
    assert STATISTICS.std[0] == pytest.approx(pixels.std(), abs=5e-5)


def test_resizing_is_linear_interpolation():
    images = load_digits().images[:100]
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images)[:, None] * (255 / 16), size=(28, 28), mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(resize(images), expected.numpy(), atol=0.5 + 1e-9)


def test_a_split_takes_what_the_largest_remainders_leave():
    labels = np.repeat([0, 1, 2], [5, 3, 2])
    train, test = stratified_split(labels, 4, seed=0)  # shares 2, 1.2, .8
    assert np.bincount(labels[test]).tolist() == [2, 1, 1]
    assert sorted([*train, *test]) == list(range(10))
