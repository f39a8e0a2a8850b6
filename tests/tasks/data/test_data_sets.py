"""Data sets selected by name."""

import pytest

from psnode.errors import ConfigurationError
from psnode.task import Data
from psnode.tasks.data import check, datasets, load, resolve


@pytest.mark.parametrize(("given", "meant"), [("MNIST", "mnist"), ("Cifar-10", "cifar10"), ("image_folder", "imagefolder")])
def test_names_ignore_case_hyphens_and_underscores(given, meant):
    assert resolve(given) == meant


def test_an_unknown_name_is_answered_with_the_nearest_and_all_others():
    with pytest.raises(ConfigurationError, match="unknown data set 'minst': did you mean mnist") as caught:
        load("minst")
    assert all(name in str(caught.value) for name in datasets())


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_what_is_loaded_is_data(name):
    assert isinstance(load(name), Data)


@pytest.mark.parametrize("name", datasets())
def test_every_set_refuses_options_it_does_not_know(name):
    with pytest.raises(ConfigurationError, match=f"option of data set {name} 'colour'"):
        check(name, options={"colour": "red"})


@pytest.mark.parametrize("name", sorted(set(datasets()) - {"digits", "synthetic"}))
def test_every_set_on_disk_asks_for_its_directory(name):
    with pytest.raises(ConfigurationError, match=f"data set {name} is read from disk: name its directory with --data-dir"):
        check(name)
