"""A run's weights as a Hugging Face folder: transformers loads it, and computes like the run's model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import psnode
from psnode.cli.commands import main
from psnode.records.tensorfile import parse
from psnode.tasks.torchvision_ops import import_torchvision

if importlib.util.find_spec("transformers") is None:
    pytest.skip("transformers is not installed: pip install transformers", allow_module_level=True)

TASK = """
import importlib.util
import torch
from psnode.tasks.torchvision_ops import import_torchvision
if importlib.util.find_spec("torchvision") is not None:
    import_torchvision()
from transformers import GPT2Config, GPT2LMHeadModel
from psnode.task import Task

class Words:
    def __len__(self):
        return 64

    def batch(self, indices, rng):
        return (torch.arange(8).add(torch.from_numpy(indices)[:, None]).remainder(50),)

class Language(Task):
    def model(self):
        return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0))

    def train_data(self):
        return Words()

    eval_data = train_data

    def loss(self, model, batch):
        found = model(input_ids=batch[0], labels=batch[0])
        return found.loss, found.logits

    def size(self, batch):
        return len(batch[0])

class Wrapped(Language):
    def model(self):
        return torch.nn.ModuleDict({"network": super().model(), "other": torch.nn.Linear(2, 2)})

    def loss(self, model, batch):
        extra = model["other"].weight.sum() + model["other"].bias.sum()
        loss, logits = super().loss(model["network"], batch)
        return loss + extra, logits

class Compiled(Language):
    # The whole, and a part of it: the file of the folder is to have the names of neither wrapper.

    def model(self):
        made = super().model()
        made.transformer.h[0] = torch.compile(made.transformer.h[0], backend="eager")
        return torch.compile(made, backend="eager")
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory with a task. Tests run the command line in this process, to save its long imports."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "task.py").write_text(TASK)
    return tmp_path


@pytest.mark.parametrize(("name", "prefix"), [("Language", ""), ("Wrapped", "network."), ("Compiled", "")])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile loads deprecated modules
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_transformers_loads_the_folder_and_computes_the_same(
    name: str, prefix: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        import_torchvision()  # else its import by transformers fails with a CPU build of torch
    from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

    train = ("--task", f"task.py:{name}", "--scheme", "dense", "--max-steps", "2", "--threads", "1", "--train-dir", "run")
    assert main(["train", "--local", "1", "--no-tensorboard", *train]) == 0
    assert main(["export", "run", "--format", "huggingface"]) == 2
    assert "--trust-run" in capsys.readouterr().err
    assert main(["export", "run", "--format", "huggingface", "--trust-run"]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(here / "run/huggingface", local_files_only=True)
    assert main(["export", "run", "-o", "run.safetensors"]) == 0
    state = parse((here / "run.safetensors").read_bytes(), "run")
    own = GPT2LMHeadModel(GPT2Config.from_pretrained(here / "run/huggingface"))
    own.load_state_dict({key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)})
    tokens = torch.arange(8)[None]
    with torch.no_grad():
        assert torch.equal(loaded.eval()(tokens).logits, own.eval()(tokens).logits)
    assert main(["export", "run", "--format", "huggingface", "--trust-run"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_run_of_another_kind_of_model_makes_no_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train = ("--network", "LeNet", "--dataset", "digits", "--scheme", "dense", "--max-steps", "1", "--train-dir", "run")
    assert main(["train", "--local", "1", "--no-tensorboard", *train, "--threads", "1"]) == 0
    capsys.readouterr()
    assert main(["export", "run", "--format", "huggingface"]) == 2
    err = capsys.readouterr().err
    assert "holds no models of transformers" in err
    assert err.count("\n") == 1
    assert not (here / "run/huggingface").exists()
    assert main(["export", "run", "--trust-run"]) == 2
    assert "a state dict needs no code" in capsys.readouterr().err


@pytest.mark.parametrize("named", ["record", "file"])
def test_the_model_of_a_session_is_exported_by_its_configuration(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], named: str
) -> None:
    import_torchvision()
    from transformers import AutoModelForCausalLM, BertConfig, GPT2Config, GPT2LMHeadModel

    class Own(GPT2LMHeadModel):
        """A class of the program, which transformers does not have."""

    kind = GPT2LMHeadModel if named == "record" else Own
    torch.manual_seed(1)
    model = kind(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0.0))
    rows = torch.arange(8).add(torch.arange(4)[:, None]).remainder(50)
    monkeypatch.setenv("PSNODE_THREADS", "1")
    with psnode.session(model, train_dir="run", scheme="dense", lr=0.1, max_steps=2, tensorboard=False) as s:
        for batch in s.batches([rows] * 2):
            loss = model(input_ids=batch, labels=batch).loss
            loss.backward()
            s.step(loss)
    assert main(["export", "run", "--format", "huggingface"]) == 2
    said = capsys.readouterr().err
    assert all(word in said for word in ("--config DIR", "model.save_pretrained(DIR)", "--output NAME.pt")), said
    model.config.architectures = None if named == "record" else ["GPT2LMHeadModel"]
    model.config.save_pretrained("config")
    assert main(["export", "run", "--format", "huggingface", "--config", "config", "--output", "folder"]) == 0
    loaded = AutoModelForCausalLM.from_pretrained("folder").eval()
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=rows).logits, model.eval()(input_ids=rows).logits)
    assert loaded.lm_head.weight is loaded.transformer.wte.weight  # tied, as in the program
    Path("empty").mkdir()
    assert main(["export", "run", "--format", "huggingface", "--config", "empty", "--output", "other"]) == 2
    assert "--config empty has no config.json of a model" in capsys.readouterr().err
    BertConfig(architectures=["GPT2LMHeadModel"]).save_pretrained("bert")
    assert main(["export", "run", "--format", "huggingface", "--config", "bert", "--output", "other"]) == 2
    assert "--config bert is not that of a GPT2LMHeadModel" in capsys.readouterr().err
    assert main(["export", "run", "--config", "config"]) == 2
