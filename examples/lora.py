"""Fine-tuning of a causal language model with LoRA adapters, by transformers and peft. Only adapters cross the links.

python examples/lora.py base runs/base
psnode train --local 2 --task examples/lora.py --task-option base=runs/base --scheme topk:ratio=0.05 --optimizer adamw --lr 0.01 \
    --clip-grad-norm 1 --precision bf16 --max-steps 200 --train-dir runs/lora
psnode export runs/lora
python examples/lora.py adapter runs/base runs/lora/model.safetensors runs/adapter

The first command makes a tiny model with random weights, in the format of Hugging Face. Any other causal language model in a
folder can be used instead. The last command writes the adapter in peft's format:
`PeftModel.from_pretrained(model, "runs/adapter")` loads it.

Hu et al.: LoRA: low-rank adaptation of large language models, ICLR 2022.

Options, as --task-option KEY=VALUE
    base     the folder with the model and its tokenizer
    text     the file to train on, in UTF-8 (topics of Python's reference manual, as in charlm.py)
    rank     rank of the adapters (8)
    length   tokens per example (64)
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from charlm import Windows, text  # charlm.py in this folder
from safetensors.torch import load_file, load_model
from torch import nn
from torch.nn import functional

from psnode.errors import ConfigurationError
from psnode.task import Batch, Task
from psnode.tasks.torchvision_ops import import_torchvision

import_torchvision()  # before transformers, which imports it: torchvision's operators may be built for another torch

from peft import LoraConfig, get_peft_model  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast  # noqa: E402


def make_base(folder: Path) -> None:
    """Write a Llama with 0.1 million random weights in bfloat16, and its tokenizer, whose tokens are bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: token for token, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    tokens = {"vocab_size": len(letters), "bos_token_id": None, "eos_token_id": None}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**shape, **tokens, initializer_range=0.2))
    model.bfloat16().save_pretrained(folder)


class FineTuning(Task):
    """A task that trains adapters. Its loss is the cross-entropy per token, and its metric is top1.

    The weights of the base stay frozen, in their own type. Adapters are float32.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        known = ("base", "text", "rank", "length")
        if unknown := sorted(set(self.options) - set(known)):
            raise ConfigurationError(f"unknown task option {unknown[0]!r}: the choices are {', '.join(known)}")
        if not (Path(self.options.get("base", "")) / "config.json").is_file() or "base" not in self.options:
            raise ConfigurationError("add --task-option base=FOLDER with a model; python examples/lora.py base FOLDER makes one")
        for name, default in (("rank", "8"), ("length", "64")):
            if not (value := self.options.setdefault(name, default)).isdecimal() or int(value) < 1:
                raise ConfigurationError(f"task option {name} must be a whole number of at least 1, not {value!r}")

    def model(self) -> nn.Module:
        """Return the base with adapters for all linear layers except the last one. peft freezes all other weights."""
        base = AutoModelForCausalLM.from_pretrained(self.options["base"], local_files_only=True)
        rank = int(self.options["rank"])
        return get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=rank, lora_alpha=2 * rank, target_modules="all-linear"))

    def train_data(self) -> Windows:
        tokens = self._tokens()
        return Windows(tokens[: len(tokens) * 9 // 10], int(self.options["length"]))

    def eval_data(self) -> Windows:
        tokens = self._tokens()
        return Windows(tokens[len(tokens) * 9 // 10 :], int(self.options["length"]))

    def _tokens(self) -> np.ndarray:
        source = self.options.get("text")
        if source and not Path(source).is_file():
            raise ConfigurationError(f"task option text: there is no file {source}")
        tokenizer = AutoTokenizer.from_pretrained(self.options["base"], local_files_only=True)
        tokens = tokenizer(Path(source).read_text(encoding="utf-8") if source else text()[:200_000], verbose=False)["input_ids"]
        return np.array(tokens, np.int64)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        inputs, targets = batch
        logits = model(input_ids=inputs, use_cache=False).logits.float()
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        return {"top1": float((outputs.argmax(dim=-1) == batch[1]).sum())}

    def size(self, batch: Batch) -> int:
        """Return the number of tokens, not of windows, since loss and metrics are averages over tokens."""
        return int(batch[1].numel())


def save_adapter(base: Path, weights: Path, folder: Path) -> None:
    """Write the adapters in `weights`, a file that psnode export made, into `folder` in a format that peft can load."""
    rank = next(len(value) for name, value in load_file(weights).items() if "lora_A" in name)
    model = FineTuning({"base": str(base), "rank": str(rank)}).model()
    load_model(model, weights)
    model.save_pretrained(folder)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["base", folder]:
            make_base(Path(folder))
        case ["adapter", base, weights, folder]:
            save_adapter(Path(base), Path(weights), Path(folder))
        case _:
            sys.exit(__doc__)
