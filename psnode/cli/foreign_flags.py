"""Options of other programs, each with the psnode option for the same purpose, or with other advice."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_ANSWERS: Mapping[str, str] = MappingProxyType(
    {
        "--device --gpu --gpus --cuda --accelerator": "--enable-gpu",
        "--amp --bf16 --mixed-precision --autocast": "--precision bf16; what crosses the links is chosen by --scheme",
        "--fp16 --half": "--precision bf16 for computing, --scheme fp16 for what crosses the links",
        "--workers --num-processes --nproc-per-node --nproc --world-size --nnodes --np": "psnode launch -n P -- train ..., or "
        "--local P in one process",
        "--hostfile --hosts --host": "psnode launch --hostfile FILE -n P -- train ...",
        "--num-workers --dataloader-num-workers": "--data-workers",
        "--gradient-accumulation-steps --accumulate-grad-batches --accumulation-steps --grad-accum": "--batches-per-step",
        "--per-device-train-batch-size --train-batch-size --micro-batch-size --bs": "--batch-size, of one worker",
        "--learning-rate": "--lr",
        "--wd": "--weight-decay",
        "--optim": "--optimizer",
        "--max-grad-norm --gradient-clip-val --grad-clip --clip-grad": "--clip-grad-norm",
        "--lr-scheduler --scheduler --lr-scheduler-type": "--lr-schedule",
        "--warmup --num-warmup-steps --warmup-ratio": "--warmup-epochs or --warmup-steps",
        "--num-train-epochs --num-epochs --max-epochs --n-epochs": "--epochs",
        "--steps --num-steps --max-iters --iterations --total-steps": "--max-steps",
        "--model --arch --model-name --model-name-or-path": "--network, or --task FILE for a model of your own",
        "--data --data-path --root": "--data-dir, beside --dataset",
        "--output-dir --save-dir --out-dir --logdir --log-dir --checkpoint-dir --output": "--train-dir",
        "--save-steps --save-freq --checkpoint-interval --save-every --eval-steps --eval-interval": "--eval-freq",
        "--save-total-limit --keep --max-checkpoints": "--keep-last",
        "--logging-steps --log-every --print-freq": "--log-interval",
        "--wandb --use-wandb --mlflow --trackio --report-to --logger --tracker": "--log-to wandb,mlflow,trackio",
        "--resume-from-checkpoint --resume-from --checkpoint": "--resume, with the run's --train-dir",
        "--pretrained --load --weights --init --finetune-from": "--init-from",
        "--compression --compressor --compress --grad-compression": "--scheme",
        "--compress-ratio --ratio --density --sparsity": "--scheme topk:ratio=0.01",
        "--verbose --log-level": "--quiet, for less",
        "--local-rank --rank --master-addr --master-port --backend --rdzv-endpoint": "nothing to set: mpirun tells "
        "every rank its place",
    }
)
FOREIGN: Mapping[str, str] = MappingProxyType({name: answer for names, answer in _ANSWERS.items() for name in names.split()})


def answer(option: str) -> str:
    """Return an answer for an option that other programs have, such as `: here it is --lr`; empty for an unknown option."""
    found = FOREIGN.get(option.lower().replace("_", "-"))
    if found is None:
        return ""
    return f": {found}" if found.startswith("nothing") else f": here it is {found}"
