"""timm's models as networks, and weights from the user's disk."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.records.weights import initialise
from psnode.tasks import models
from psnode.tasks.torchvision_ops import import_torchvision

import_torchvision("ops")
timm = pytest.importorskip("timm")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.mark.parametrize(("name", "shape"), [("timm:test_resnet", (3, 64, 64)), ("timm:Test-ViT", (1, 32, 48))])
def test_it_takes_the_images_and_tells_the_classes(name: str, shape: tuple[int, int, int]) -> None:
    network = models.build(name, shape, 7)
    assert network.training
    assert network(torch.zeros(2, *shape)).shape == (2, 7)


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="unknown timm model 'test_resnot': did you mean test_resnet"):
        models.resolve("timm:test_resnot")


def test_weights_on_disk_are_taken_but_for_a_last_layer_of_another_number_of_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(1)
    pretrained = timm.create_model("test_resnet", num_classes=11)
    file = tmp_path / "model.safetensors"
    safetensors.save_file(pretrained.state_dict(), file)
    model = models.build("timm:test_resnet", (3, 64, 64), 7)
    head = {name: value.clone() for name, value in model.state_dict().items() if name.startswith("fc.")}
    with pytest.raises(ConfigurationError, match=r"fc.weight is .* in it and .* in the network, and 1 more"):
        initialise(model, file)
    told: list[str] = []
    log = logging.getLogger("psnode.records.weights")
    monkeypatch.setattr(log, "info", lambda text, *arguments: told.append(text % arguments))
    initialise(model, file, new_head=True)
    assert told == [f"fc.weight and fc.bias are reinitialised: 7 outputs here, 11 in {file}"]
    for name, value in model.state_dict().items():
        assert torch.equal(
            value, head.get(name, pretrained.state_dict()[name]) if name in head else pretrained.state_dict()[name]
        )
    with pytest.raises(ConfigurationError, match="--new-head has no meaning"):
        initialise(timm.create_model("test_resnet", num_classes=11), file, new_head=True)
    with pytest.raises(ConfigurationError, match="it lacks"):
        initialise(timm.create_model("test_vit", num_classes=7), file, new_head=True)


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    file = tmp_path / "resnet18.pth"
    torch.save({}, file)
    with pytest.raises(ConfigurationError, match=r"executes none: .* weights_only=True"):
        initialise(torch.nn.Linear(1, 1), file)
