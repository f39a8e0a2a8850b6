"""MNIST's IDX files: the places where they may be, and refusals of damaged or missing files."""

import gzip

import numpy as np
import pytest

from psnode.errors import ConfigurationError
from psnode.tasks.data import check, load


def idx(array: np.ndarray) -> bytes:
    header = b"\0\0\x08" + bytes([array.ndim]) + b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + array.astype(np.uint8).tobytes()


def write(folder, train: int = 30, test: int = 7, packed: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", train), ("t10k", test)):
        rng = np.random.default_rng(count)
        arrays = {"images-idx3": rng.integers(0, 256, (count, 28, 28)), "labels-idx1": np.arange(count) % 10}
        for name, array in arrays.items():
            path = folder / f"{part}-{name}-ubyte{'.gz' if packed else ''}"
            path.write_bytes(gzip.compress(idx(array)) if packed else idx(array))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("below", [".", "raw", "MNIST/raw"])
def test_files_are_found_and_read(tmp_path, below, packed):
    write(tmp_path / below, packed=packed)
    train, test = (load("MNIST", tmp_path, train=part) for part in (True, False))
    assert (len(train), len(test), train.image_shape, train.classes) == (30, 7, (1, 28, 28), 10)
    expected = np.random.default_rng(30).integers(0, 256, (30, 28, 28))
    images, labels = train.batch(np.array([29, 4]), None)
    np.testing.assert_allclose(images[:, 0], (expected[[29, 4]] / 255 - 0.1307) / 0.3081, atol=2e-6)
    assert labels.tolist() == [9, 4]


def test_only_the_wanted_part_needs_to_be_there(tmp_path):
    write(tmp_path)
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    assert len(load("mnist", tmp_path)) == 30
    with pytest.raises(ConfigurationError, match="t10k-images"):
        check("mnist", tmp_path, train=False)


def test_without_a_directory_the_flag_is_named():
    with pytest.raises(ConfigurationError, match="name its directory with --data-dir"):
        check("mnist", download=True)


def test_what_is_there_is_not_downloaded_again(tmp_path):
    write(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert len(load("mnist", tmp_path, download=True)) == 30
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("directory", ["empty", "absent"])
def test_missing_files_name_the_remedies(tmp_path, directory):
    (tmp_path / "empty").mkdir()
    for ask in (check, load):
        with pytest.raises(ConfigurationError, match=r"(?s)--data-dir.*--download") as caught:
            ask("mnist", tmp_path / directory)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"\0\0\x0d" + data[3:],
        lambda data: data[:4] + b"\xff\xff\xff\xff" + data[8:],
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    write(tmp_path, packed=False)
    path = tmp_path / "train-images-idx3-ubyte"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConfigurationError, match="train-images-idx3-ubyte is not a complete IDX file"):
        load("mnist", tmp_path)


def test_a_torn_gzip_file_is_named(tmp_path):
    write(tmp_path)
    path = tmp_path / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ConfigurationError, match=r"train-labels-idx1-ubyte.gz is damaged"):
        load("mnist", tmp_path)


def test_labels_of_another_count_are_refused(tmp_path):
    write(tmp_path, packed=False)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(np.zeros(29)))
    with pytest.raises(ConfigurationError, match=r"shape \(30, 28, 28\) and labels of shape \(29,\)"):
        load("mnist", tmp_path)
