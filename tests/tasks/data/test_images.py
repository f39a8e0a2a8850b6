"""Images in memory: a single normalisation, and CIFAR's augmentation."""

import numpy as np
import pytest
import torch

from psnode.tasks.data.data_set import STATISTICS, Statistics
from psnode.tasks.data.images import Images, crop_and_mirror

COLOURS = STATISTICS["cifar10"]


@pytest.fixture
def images() -> Images:
    rng = np.random.default_rng(0)
    return Images(rng.integers(0, 256, (50, 3, 8, 10), dtype=np.uint8), np.arange(50) % 7, 7, COLOURS, augment=True)


def test_a_batch_is_normalised_channel_by_channel(images):
    indices = np.array([3, 3, 49, 0])
    x, y = images.batch(indices, None)
    mean, std = (np.array(values, np.float64)[:, None, None] for values in COLOURS)
    assert x.dtype == torch.float32
    assert y.dtype == torch.int64
    np.testing.assert_allclose(x.numpy(), (images.pixels[indices] / 255.0 - mean) / std, rtol=0, atol=2e-6)
    assert y.tolist() == [3, 3, 0, 0]


def test_shape_and_classes_are_stated(images):
    assert (images.image_shape, images.classes, len(images)) == ((3, 8, 10), 7, 50)


def test_training_and_evaluation_normalise_alike():
    flat = np.full((4, 1, 9, 9), 77, np.uint8)
    data = Images(flat, np.zeros(4), 1, Statistics((0.3,), (0.5,)), augment=True)
    inner = np.s_[:, :, 4:5, 4:5]  # no shift by 4 moves black into this region
    trained, _ = data.batch(np.arange(4), np.random.default_rng(1))
    evaluated, _ = data.batch(np.arange(4), None)
    assert torch.equal(trained[inner], evaluated[inner])


def test_batches_share_no_memory_with_the_data(images):
    before = images.batch(np.arange(5), None)[0].clone()
    images.batch(np.arange(5), None)[0].zero_()
    assert torch.equal(images.batch(np.arange(5), None)[0], before)


def test_equal_generators_give_equal_batches(images):
    first, same, other = (images.batch(np.arange(20), np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_crop_and_mirror_is_what_a_loop_over_images_does():
    rng = np.random.default_rng(3)
    pixels = rng.integers(1, 256, (40, 3, 7, 9), dtype=np.uint8)
    made = crop_and_mirror(pixels, np.random.default_rng(8), margin=2)
    draws = np.random.default_rng(8)
    rows, columns = draws.integers(5, size=(2, 40))
    mirrored = draws.integers(2, size=40)
    for i in range(40):
        expected = np.zeros((3, 7, 9), np.uint8)
        for row in range(7):
            for column in range(9):
                source_row, source_column = row + rows[i] - 2, column + columns[i] - 2
                if 0 <= source_row < 7 and 0 <= source_column < 9:
                    expected[:, row, 8 - column if mirrored[i] else column] = pixels[i, :, source_row, source_column]
        assert np.array_equal(made[i], expected), i


def test_all_81_shifts_and_both_sides_are_equally_likely():
    count = 16200
    pixels = np.zeros((count, 1, 9, 9), np.uint8)
    pixels[:, 0, 4, 4] = 255
    pixels[:, 0, 4, 3] = 1  # its left neighbour
    made = crop_and_mirror(pixels, np.random.default_rng(0))[:, 0]
    rows, columns = np.divmod(made.reshape(count, 81).argmax(axis=1), 9)
    places = np.bincount(9 * rows + columns, minlength=81)
    # chi-square with 80 degrees of freedom: 160 is exceeded with probability 3e-7
    assert ((places - count / 81) ** 2 / (count / 81)).sum() < 160
    visible = columns > 0
    left = made[np.arange(count), rows, np.maximum(columns - 1, 0)] == 1
    # share of mirrored images among those whose left neighbour is visible: five standard errors
    assert abs(left[visible].mean() - 0.5) < 5 * 0.5 / np.sqrt(visible.sum())


def test_the_data_itself_is_never_augmented(images):
    before = images.pixels.copy()
    images.batch(np.arange(50), np.random.default_rng(0))
    assert np.array_equal(images.pixels, before)
