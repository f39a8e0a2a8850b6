"""CIFAR and SVHN: torchvision reads small files written here in the original formats."""

import hashlib
import pickle

import numpy as np
import pytest
from scipy.io import savemat

from psnode.errors import ConfigurationError
from psnode.tasks.data import check, load
from psnode.tasks.data.data_set import STATISTICS
from psnode.tasks.torchvision_ops import import_torchvision


def checksum(path) -> str:
    return hashlib.md5(path.read_bytes()).hexdigest()


def write_cifar(folder, kind, key: str, monkeypatch) -> np.ndarray:
    """Write files of 5 images each where torchvision looks for them, and register their checksums with torchvision."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    images = {}
    for attribute in ("train_list", "test_list"):
        entries = []
        for name, _ in getattr(kind, attribute):
            images[name] = rng.integers(0, 256, (5, 3072), dtype=np.uint8)
            (folder / name).write_bytes(pickle.dumps({"data": images[name], key: list(range(5))}))
            entries.append([name, checksum(folder / name)])
        monkeypatch.setattr(kind, attribute, entries)
    meta = folder / kind.meta["filename"]
    meta.write_bytes(pickle.dumps({kind.meta["key"]: ["?"]}))
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": checksum(meta)})
    return images


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    kind = import_torchvision("datasets").CIFAR10
    return write_cifar(tmp_path / "cifar-10-batches-py", kind, "labels", monkeypatch)


def test_cifar10_is_read_planar_and_normalised(tmp_path, cifar10):
    train, test = (load("CIFAR-10", tmp_path, train=part) for part in (True, False))
    assert (len(train), len(test), train.image_shape, train.classes) == (25, 5, (3, 32, 32), 10)
    mean, std = (np.array(values)[:, None, None] for values in STATISTICS["cifar10"])
    images, labels = train.batch(np.array([7]), None)
    expected = cifar10["data_batch_2"][2].reshape(3, 32, 32) / 255
    np.testing.assert_allclose(images[0], (expected - mean) / std, atol=2e-6)
    assert labels.tolist() == [2]


def test_the_folder_itself_may_be_named(tmp_path, cifar10):
    assert len(load("cifar10", tmp_path / "cifar-10-batches-py")) == 25


def test_cifar_is_augmented_in_training_unless_told_not_to(tmp_path, cifar10):
    augmented, plain = (load("cifar10", tmp_path, options=options) for options in ({}, {"augment": "false"}))
    indices = np.arange(25)
    still = augmented.batch(indices, None)[0]
    assert not np.array_equal(augmented.batch(indices, np.random.default_rng(0))[0], still)
    assert np.array_equal(plain.batch(indices, np.random.default_rng(0))[0], still)


def test_cifar100_has_its_fine_labels(tmp_path, monkeypatch):
    kind = import_torchvision("datasets").CIFAR100
    write_cifar(tmp_path / "cifar-100-python", kind, "fine_labels", monkeypatch)
    data = load("cifar100", tmp_path)
    assert (len(data), data.classes) == (5, 100)


def test_an_incomplete_cifar_names_the_remedies(tmp_path, cifar10):
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(b"?")
    with pytest.raises(ConfigurationError, match=r"cifar10 cannot be read.*--data-dir.*--download"):
        load("cifar10", tmp_path)


def test_svhn_is_read_with_ten_as_zero_and_is_not_augmented(tmp_path, monkeypatch):
    kind = import_torchvision("datasets").SVHN
    pixels = np.random.default_rng(1).integers(0, 256, (32, 32, 3, 6), dtype=np.uint8)
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": pixels, "y": np.array([[10], [1], [2], [3], [4], [5]])})
    monkeypatch.setattr(kind, "split_list", {"train": ["", path.name, checksum(path)]})
    data = load("SVHN", tmp_path)
    images, labels = data.batch(np.arange(6), np.random.default_rng(0))
    mean, std = (np.array(values)[:, None, None] for values in STATISTICS["svhn"])
    np.testing.assert_allclose(images[4], (pixels[..., 4].transpose(2, 0, 1) / 255 - mean) / std, atol=2e-6)
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "svhn"])
def test_missing_files_name_the_remedies(tmp_path, name):
    for ask in (check, load):
        with pytest.raises(ConfigurationError, match=rf"{name} cannot be read: no .* in .*--data-dir.*--download"):
            ask(name, tmp_path)


def test_a_failed_download_is_one_line(tmp_path, monkeypatch):
    kind = import_torchvision("datasets").MNIST
    monkeypatch.setattr(kind, "mirrors", ["http://127.0.0.1:9/"])
    with pytest.raises(ConfigurationError, match=r"^data set mnist cannot be downloaded to ") as caught:
        load("mnist", tmp_path / "new", download=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["yes", "1", ""])
def test_augment_is_true_or_false(tmp_path, cifar10, text):
    with pytest.raises(ConfigurationError, match=f"augment must be true or false, not {text!r}"):
        load("cifar10", tmp_path, options={"augment": text})
