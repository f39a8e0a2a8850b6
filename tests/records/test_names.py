"""Names of tensors of plain, compiled, nested and parallel models."""

import pytest
import torch
from torch import nn

from psnode.records.tensorfile import dump
from psnode.records.weights import initialise
from psnode.tasks.tensor_names import matched, plain


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def plainly() -> nn.Module:
    return Around(nn.Linear(2, 2))


def compiled() -> nn.Module:
    return torch.compile(plainly())


def inside() -> nn.Module:
    return Around(torch.compile(nn.Linear(2, 2)))


def both() -> nn.Module:
    return torch.compile(inside())


def parallel() -> nn.Module:
    return nn.DataParallel(compiled())


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile loads deprecated modules
FORMS = [plainly, compiled, inside, both, parallel]


@pytest.mark.parametrize("there", FORMS)
@pytest.mark.parametrize("here", FORMS)
def test_a_file_of_each_form_begins_each_form(tmp_path, there, here) -> None:
    given, model = there(), here()
    path = tmp_path / "weights.safetensors"
    path.write_bytes(dump(given.state_dict()))
    initialise(model, path)
    for one, two in zip(given.state_dict().values(), model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_names_that_clash_stay_as_they_are() -> None:
    found = {"a._orig_mod.w": 1, "a.w": 2}
    assert matched(found, {"a.w"}) == found


def test_a_part_that_is_called_module_is_no_wrapper() -> None:
    assert matched({"module.w": 1}, {"module.w"}) == {"module.w": 1}
    assert plain("a._orig_mod.b") == "a.b"
    assert plain("my_orig_mod.b") == "my_orig_mod.b"
