"""Folders of image files: search, sizes, augmentation and cache."""

import numpy as np
import pytest
from PIL import Image

from psnode.errors import ConfigurationError
from psnode.tasks.data import check, describe, load
from psnode.tasks.data.data_set import STATISTICS
from psnode.tasks.data.image_files import central_box, random_box


def picture(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write(root, parts, sizes=((12, 10),) * 4, ending: str = "png") -> None:
    """Write one image per size for every class, by part: {part: class names}. Image i of class c has seed 10 c + i."""
    for part, classes in parts.items():
        for c, name in enumerate(classes):
            (root / part / name).mkdir(parents=True)
            for i, (height, width) in enumerate(sizes):
                Image.fromarray(picture(10 * c + i, height, width)).save(root / part / name / f"{i}.{ending}")


@pytest.fixture
def folder(tmp_path):
    write(tmp_path, {"train": ("ant", "bee", "cat"), "val": ("ant", "cat")})
    return tmp_path


def pixels(images) -> np.ndarray:
    """Return the bytes of normalised images."""
    mean, std = (np.array(values)[:, None, None] for values in STATISTICS["imagenet"])
    return np.rint((images.numpy() * std + mean) * 255).astype(int)


def test_images_of_one_size_are_taken_as_they_are(folder):
    data = load("imagefolder", folder)
    assert (len(data), data.image_shape, data.classes) == (12, (3, 12, 10), 3)
    images, labels = data.batch(np.array([5, 0, 5]), None)
    expected = [picture(seed, 12, 10).transpose(2, 0, 1) for seed in (11, 0, 11)]
    assert np.array_equal(pixels(images), expected)
    assert labels.tolist() == [1, 0, 1]


def test_labels_of_the_evaluation_part_are_the_training_classes(folder):
    data = load("imagefolder", folder, train=False)
    assert data.batch(np.arange(8), None)[1].tolist() == [0, 0, 0, 0, 2, 2, 2, 2]


def test_test_comes_before_val(folder):
    write(folder, {"test": ("bee",)})
    assert len(load("imagefolder", folder, train=False)) == 4


def test_classes_and_size_are_known_without_decoding_all(folder):
    assert describe("imagefolder", folder) == ((3, 12, 10), 3)


def test_folders_below_a_class_and_other_files(folder):
    (folder / "train" / "bee" / "more").mkdir()
    Image.fromarray(picture(77, 12, 10)).save(folder / "train" / "bee" / "more" / "x.PNG")
    (folder / "train" / "bee" / "notes.txt").write_text("no image")
    assert len(load("imagefolder", folder)) == 13


def test_the_majority_decides_the_size(tmp_path):
    write(tmp_path, {"train": ("a", "b")}, sizes=((20, 30), (20, 30), (40, 41), (20, 30)))
    assert describe("imagefolder", tmp_path).image_shape == (3, 20, 30)


def test_without_a_majority_images_are_224x224(tmp_path):
    write(tmp_path, {"train": ("a",)}, sizes=((20, 30), (30, 20)))
    assert describe("imagefolder", tmp_path).image_shape == (3, 224, 224)


@pytest.mark.parametrize(("text", "shape"), [("16", (3, 16, 16)), ("8x24", (3, 8, 24))])
def test_a_size_may_be_asked_for(folder, text, shape):
    data = load("imagefolder", folder, options={"size": text})
    assert data.image_shape == shape
    assert data.batch(np.array([1]), None)[0].shape == (1, *shape)


def test_a_larger_image_is_cut_around_its_centre(tmp_path):
    write(tmp_path, {"train": ("a",)}, sizes=((8, 20),))
    images, _ = load("imagefolder", tmp_path, options={"size": "8"}).batch(np.array([0]), None)
    assert np.array_equal(pixels(images)[0], picture(0, 8, 20)[:, 6:14].transpose(2, 0, 1))


def test_grey_and_transparent_files_become_rgb(tmp_path):
    write(tmp_path, {"train": ("a",)}, sizes=((9, 9),))
    Image.fromarray(np.full((9, 9), 50, np.uint8)).save(tmp_path / "train" / "a" / "1.png")
    Image.fromarray(np.full((9, 9, 4), 60, np.uint8)).save(tmp_path / "train" / "a" / "2.png")
    images, _ = load("imagefolder", tmp_path).batch(np.array([1, 2]), None)
    assert np.unique(pixels(images)[0]).tolist() == [50]
    assert np.unique(pixels(images)[1]).tolist() == [60]


@pytest.mark.parametrize("augment", ["shift", "area"])
def test_augmentation_is_driven_by_the_generator_alone(folder, augment):
    data = load("imagefolder", folder, options={"augment": augment})
    first, same, other = (data.batch(np.arange(12), np.random.default_rng(seed))[0] for seed in (4, 4, 5))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    still = load("imagefolder", folder, options={"augment": "none"})
    assert np.array_equal(still.batch(np.arange(12), np.random.default_rng(4))[0], data.batch(np.arange(12), None)[0])


def test_evaluation_is_not_augmented(folder):
    data = load("imagefolder", folder, train=False)
    assert np.array_equal(data.batch(np.arange(8), np.random.default_rng(1))[0], data.batch(np.arange(8), None)[0])


def test_cached_images_equal_those_decoded_anew(folder):
    kept, anew = (load("imagefolder", folder, options={"cache": size}) for size in ("1", "0"))
    for seed in range(4):
        indices = np.random.default_rng(seed).integers(12, size=7)
        for rng in (None, seed):
            batches = [data.batch(indices, None if rng is None else np.random.default_rng(rng))[0] for data in (kept, anew)]
            assert np.array_equal(*batches)


def test_a_cached_image_is_decoded_once(folder):
    data = load("imagefolder", folder)
    before = data.batch(np.arange(12), None)[0]
    for path in folder.rglob("*.png"):
        path.unlink()
    assert np.array_equal(data.batch(np.arange(12), None)[0], before)


def test_the_normalisation_may_be_another_sets(folder):
    images, _ = load("imagefolder", folder, options={"mean_std": "cifar10"}).batch(np.array([0]), None)
    mean, std = (np.array(values)[:, None, None] for values in STATISTICS["cifar10"])
    np.testing.assert_allclose(images[0], (picture(0, 12, 10).transpose(2, 0, 1) / 255 - mean) / std, atol=2e-6)


def test_a_central_box_has_the_wanted_proportions_and_the_largest_size():
    # an image of 400x300 for a 224x112 output (proportion 2): 300 wide, 150 high
    box = np.array(central_box((224 / 112) * 400 / 300, 1.0)) * (300, 400, 300, 400)
    assert box == pytest.approx([0, 125, 300, 275])
    assert np.array(central_box(1.0, 0.875)) == pytest.approx([1 / 16, 1 / 16, 15 / 16, 15 / 16])


def test_random_boxes_lie_inside_with_area_and_proportions_in_bounds():
    rng = np.random.default_rng(0)
    boxes = np.array([random_box(1.0, rng.random(4)) for _ in range(5000)])
    assert boxes.min() >= 0
    assert boxes.max() <= 1 + 1e-12
    widths, heights = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, proportions = widths * heights, widths / heights
    assert areas.min() >= 0.08 * 0.999
    assert areas.max() > 0.95
    assert 3 / 4 - 1e-9 <= proportions.min() < 0.76
    assert 1.32 < proportions.max() <= 4 / 3 + 1e-9


def test_a_damaged_file_is_named(folder):
    path = folder / "train" / "bee" / "2.png"
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(ConfigurationError, match=r"bee/2\.png cannot be decoded") as caught:
        load("imagefolder", folder).batch(np.arange(12), None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parts", "train", "message"),
    [
        ({}, True, "no folder train"),
        ({"train": ("a",)}, False, "no folder test or val"),
        ({"train": ()}, True, "no folder"),
        ({"train": ("a",), "test": ("a", "b")}, False, "has a class 'b' that train lacks"),
    ],
)
def test_a_wrong_layout_is_explained(tmp_path, parts, train, message):
    write(tmp_path, parts)
    with pytest.raises(ConfigurationError, match=f"{message}.*one folder of image files per class"):
        load("imagefolder", tmp_path, train=train)


def test_an_empty_class_is_named(folder):
    (folder / "train" / "dog").mkdir()
    with pytest.raises(ConfigurationError, match="dog holds no image files"):
        load("imagefolder", folder)


def test_checking_reads_no_file_of_the_wanted_part(folder):
    assert check("imagefolder", folder, train=False).classes == 3


@pytest.mark.parametrize(
    ("option", "value"),
    [("size", "0"), ("size", "3x"), ("augment", "flip"), ("mean_std", "mnist"), ("cache", "-1"), ("colour", "red")],
)
def test_wrong_options_are_refused(folder, option, value):
    with pytest.raises(ConfigurationError, match=rf"{option}.*{value}|'{option}'"):
        load("imagefolder", folder, options={option: value})
