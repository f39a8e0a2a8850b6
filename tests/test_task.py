"""Loading the user's own task from a file or a module."""

import sys
import textwrap
from typing import NamedTuple

import pytest
import torch

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.task import Task, load_task
from psnode.tasks.device import to_device
from psnode.tasks.loading import make_task

BODY = """
    def model(self): return None
    def train_data(self): return None
    def eval_data(self): return None
    def loss(self, model, batch): return None
    def size(self, batch): return 1
"""
IMPORT = "from psnode.task import Task\n"
FAULTY = IMPORT + "class Mine(Task):\n    def __init__(self, options): raise KeyError('depth')"


@pytest.fixture(autouse=True)
def same_import_path(monkeypatch):
    """Undo the additions that loading makes to sys.path and sys.modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith(("psnode_task_", "mine_")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path):
    def write_file(text: str, name: str = "mine.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return str(path)

    return write_file


def test_the_only_task_of_a_file_is_constructed_with_the_options(write):
    task = load_task(write(IMPORT + "class Mine(Task):" + BODY), {"width": "3"})
    assert isinstance(task, Task)
    assert (type(task).__name__, task.options) == ("Mine", {"width": "3"})


def test_a_file_beside_the_current_directory_needs_no_slash(write, tmp_path, monkeypatch):
    write(IMPORT + "class Mine(Task):" + BODY)
    monkeypatch.chdir(tmp_path)
    assert type(load_task("mine.py")).__name__ == "Mine"


def test_a_module_is_found_from_the_current_directory(write, tmp_path, monkeypatch):
    write("", "mine_package/__init__.py")
    write(IMPORT + "class Mine(Task):" + BODY, "mine_package/tasks.py")
    monkeypatch.chdir(tmp_path)
    assert type(load_task("mine_package.tasks")).__name__ == "Mine"


def test_a_file_imports_its_neighbours(write):
    write("WIDTH = 7", "mine_neighbour.py")
    path = write(IMPORT + "from mine_neighbour import WIDTH\nclass Mine(Task):\n    width = WIDTH" + BODY)
    assert load_task(path).width == 7


def test_dataclasses_in_a_file_work(write):
    head = "from __future__ import annotations\nfrom dataclasses import dataclass\n"
    path = write(head + IMPORT + "@dataclass\nclass Batch:\n    x: int\nclass Mine(Task):\n    batch = Batch(3)" + BODY)
    assert load_task(path).batch.x == 3


def test_imported_and_abstract_tasks_do_not_count(write):
    write(IMPORT + "class Base(Task):" + BODY, "mine_base.py")
    path = write(IMPORT + "from mine_base import Base\nclass Half(Task):\n    pass\nclass Mine(Base):\n    pass")
    assert type(load_task(path)).__name__ == "Mine"
    assert type(load_task(f"{path}:Base")).__name__ == "Base"


def test_one_of_several_is_named(write):
    path = write(IMPORT + "class One(Task):" + BODY + "class Two(Task):" + BODY)
    assert type(load_task(f"{path}:Two")).__name__ == "Two"
    with pytest.raises(ConfigurationError, match=r"defines several tasks: add :NAME, one of One, Two"):
        load_task(path)
    with pytest.raises(ConfigurationError, match=r"has no Task class 'Three': it has One, Two"):
        load_task(f"{path}:Three")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "defines no subclass of psnode.task.Task"),
        (IMPORT + "class Mine(Task):\n    size = 1", "Mine in .* lacks the methods eval_data, loss, model, train_data"),
        ("import mine_absent", "cannot be imported: ModuleNotFoundError: No module named 'mine_absent'"),
        ("def f(:", "cannot be imported: SyntaxError"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
        ("raise ValueError('two\\nlines')", "cannot be imported: ValueError: two lines"),
        (FAULTY + BODY, "cannot be constructed: KeyError: 'depth'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(write, text, message):
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_task(write(text))
    assert "\n" not in str(caught.value)


def test_a_tasks_own_complaint_about_its_options_comes_through(write):
    head = "from psnode.errors import ConfigurationError\n" + IMPORT
    path = write(head + "class Mine(Task):\n    def __init__(self, o): raise ConfigurationError('depth is 3')" + BODY)
    with pytest.raises(ConfigurationError, match=r"^depth is 3$"):
        load_task(path)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("absent/mine.py", "task file absent/mine.py does not exist"),
        ("absent.py", "task file absent.py does not exist"),
        ("mine_absent.tasks", "task module mine_absent.tasks cannot be imported: ModuleNotFoundError"),
    ],
)
def test_missing_files_and_modules_are_named(spec, message):
    with pytest.raises(ConfigurationError, match=message):
        load_task(spec)


def test_a_file_without_py_is_no_task(write):
    with pytest.raises(ConfigurationError, match=r"its name must end in \.py"):
        load_task(write(IMPORT, "mine.txt"))


def test_a_configuration_names_the_built_in_task_or_ones_own(write):
    built_in = make_task(
        Config(network="FC", dataset="synthetic", synthetic_shape=(1, 4, 6), synthetic_classes=3, synthetic_examples=9)
    )
    assert (built_in.image_shape, built_in.classes, len(built_in.train_data())) == ((1, 4, 6), 3, 9)
    own = make_task(Config(task=write(IMPORT + "class Mine(Task):" + BODY), task_option=("a=1", "b=x=y")))
    assert own.options == {"a": "1", "b": "x=y"}


class Pair(NamedTuple):
    first: torch.Tensor
    second: str


def test_tensors_are_moved_wherever_they_are_in_a_batch():
    tensor = torch.zeros(2)
    moved = to_device({"a": [tensor, 3], "b": (tensor, None)}, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][0].device.type == "meta"
    assert (moved["a"][1], moved["b"][1]) == (3, None)
    assert isinstance(moved["b"], tuple)
    pair = to_device(Pair(tensor, "x"), torch.device("meta"))
    assert isinstance(pair, Pair)
    assert (pair.first.device.type, pair.second) == ("meta", "x")
