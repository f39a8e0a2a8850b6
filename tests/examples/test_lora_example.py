"""examples/lora.py: only adapters are trained and exchanged, and the saved file is a peft adapter that peft loads."""

import importlib.util
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import psnode
from psnode import Config
from psnode.errors import ConfigurationError
from psnode.task import load_task

if absent := [name for name in ("peft", "transformers") if importlib.util.find_spec(name) is None]:
    pytest.skip(f"without {', '.join(absent)}: pip install '.[frameworks]'", allow_module_level=True)

os.environ["HF_HUB_OFFLINE"] = "1"
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "lora.py")
STEPS, BATCH = 25, 8
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the base model and a text of 20 000 letters, in which each letter determines the next; return their folder."""
    made = tmp_path_factory.mktemp("lora")
    with pytest.raises(ConfigurationError, match=r"lora\.py base FOLDER makes one"):
        load_task(EXAMPLE, {"base": str(made)})
    (made / "text.txt").write_text("abcdefgh" * 2500)
    next(module for name, module in sys.modules.items() if getattr(module, "__file__", "") == EXAMPLE).make_base(made / "base")
    return made


def test_adapters_alone_are_trained_exchanged_and_saved(folder: Path, tmp_path: Path) -> None:
    task = load_task(EXAMPLE, {"base": str(folder / "base"), "text": str(folder / "text.txt"), "rank": "4", "length": "16"})
    config = Config(
        train_dir=tmp_path / "run", local=2, scheme="dense", optimizer="adamw", momentum=0.9, lr=0.01, clip_grad_norm=1.0,
        precision="bf16", batch_size=BATCH, max_steps=STEPS, eval_freq=STEPS, threads=1, tensorboard=False,
    )  # fmt: skip
    assert psnode.run(task, config) == 0
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["loss"] < records[0]["loss"] - 1

    # adapters of rank 4 in seven linear layers (four 64 x 64, three 64 x 128) of each of two blocks
    adapters = 2 * 4 * (4 * (64 + 64) + 3 * (64 + 128))
    for record in records:
        assert 0 <= record["uplink_bytes"] - 2 * 4 * adapters < 10_000

    weights = next((tmp_path / "run").glob("checkpoints/*/model.safetensors"))
    base, trained = load_file(folder / "base" / "model.safetensors"), load_file(weights)
    for name, value in base.items():
        [kept] = [other for key, other in trained.items() if key.replace(".base_layer", "").endswith(name)]
        assert torch.equal(kept, value), name

    sys.modules[type(task).__module__].save_adapter(folder / "base", weights, tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").stat().st_size < 4 * adapters + 10_000

    from peft import PeftModel
    from safetensors.torch import load_model
    from transformers import AutoModelForCausalLM

    alone = AutoModelForCausalLM.from_pretrained(folder / "base")
    loaded = PeftModel.from_pretrained(alone, tmp_path / "adapter").eval()
    mine = task.model().eval()
    load_model(mine, weights)
    inputs, targets = task.eval_data().batch(np.arange(4), None)
    with torch.no_grad():
        logits = loaded(input_ids=inputs).logits
        torch.testing.assert_close(logits, mine(input_ids=inputs).logits)
        with loaded.disable_adapter():
            untrained = loaded(input_ids=inputs).logits
    before, after = (torch.nn.functional.cross_entropy(x.float().flatten(0, 1), targets.flatten()) for x in (untrained, logits))
    assert after < before - 1


def test_tokens_are_the_bytes_of_the_text_and_come_back(folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "base")
    text = "def f(x):\n    return 'é€'"
    tokens = tokenizer(text)["input_ids"]
    assert len(tokens) == len(text.encode())
    assert tokenizer.decode(tokens) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [({"base": "nowhere"}, "with a model"), ({"depth": "1"}, "unknown task option 'depth'"), ({}, "with a model"),
     ({"rank": "0"}, "rank must be a whole number of at least 1, not '0'"), ({"text": "no.txt"}, "there is no file no.txt")],
)  # fmt: skip
def test_wrong_options_are_refused(folder: Path, options: dict[str, str], message: str) -> None:
    whole = options if {"base", "depth"} & set(options) or not options else {"base": str(folder / "base"), **options}
    with pytest.raises(ConfigurationError, match=message):
        load_task(EXAMPLE, whole).train_data()
