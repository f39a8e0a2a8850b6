"""The embedded digits: split, resizing and statistics."""

import hashlib

import numpy as np
import pytest
import torch

from psnode.tasks.data import load
from psnode.tasks.data.digits import STATISTICS, originals, resize, stratified_split


@pytest.fixture(scope="module")
def parts():
    return load("digits", train=True), load("digits", train=False)


def test_the_originals_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    source = datasets.load_digits()
    images, labels = originals()
    assert (images.dtype, images.tobytes()) == (source.images.dtype, source.images.tobytes())
    assert (labels.dtype, labels.tobytes()) == (source.target.dtype, source.target.tobytes())


def test_the_originals_have_the_digests_of_scikit_learns_arrays():
    """Compare the digits with the SHA-256 of scikit-learn 1.9.1's `load_digits().images` and `.target`: float64 and int64,
    little-endian.
    """
    found = [hashlib.sha256(array.tobytes()).hexdigest() for array in originals()]
    assert found == [
        "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10",
        "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21",
    ]


def test_1437_train_and_360_test_images_of_28x28(parts):
    for part, count in zip(parts, (1437, 360), strict=True):
        assert (len(part), part.image_shape, part.classes) == (count, (1, 28, 28), 10)
        assert part.batch(np.arange(count), None)[0].shape == (count, 1, 28, 28)


def test_parts_are_disjoint_and_together_everything(parts):
    everything = sorted(row.tobytes() for row in resize(originals()[0]))
    assert sorted(row.tobytes() for part in parts for row in part.pixels) == everything


def test_every_digit_has_its_share_of_the_test_part(parts):
    train, test = (np.bincount(part.labels, minlength=10) for part in parts)
    shares = (train + test) * 360 / 1797
    assert np.all(np.abs(test - shares) < 1)


def test_labels_belong_to_their_images(parts):
    images, labels = originals()
    known = dict(zip((row.tobytes() for row in resize(images)), labels, strict=True))
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
    images = originals()[0][:100]
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(images)[:, None] * (255 / 16), size=(28, 28), mode="bilinear", align_corners=False
    )
    np.testing.assert_allclose(resize(images), expected.numpy(), atol=0.5 + 1e-9)


def test_a_split_takes_what_the_largest_remainders_leave():
    labels = np.repeat([0, 1, 2], [5, 3, 2])
    train, test = stratified_split(labels, 4, seed=0)  # shares of 2, 1.2 and .8
    assert np.bincount(labels[test]).tolist() == [2, 1, 1]
    assert sorted([*train, *test]) == list(range(10))


def test_the_pixels_are_those_of_every_run_so_far():
    """Compare the SHA-256 of the resized digits: some sums are ties of rounding, so another order of the four summands would
    change pixels.
    """
    digest = hashlib.sha256(resize(originals()[0]).tobytes()).hexdigest()
    assert digest == "5a25f17551b104561d01b8c4bbf5ddb5024d784e02ede9a39ed907b2584ca2f5"


def test_the_workers_of_a_process_share_the_pixels(parts):
    again = load("digits", train=True)
    assert np.shares_memory(again.pixels, parts[0].pixels)
    assert not again.pixels.flags.writeable
