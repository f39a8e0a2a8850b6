"""The configuration of a training run: a frozen dataclass that declares every setting once."""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import xxhash

from psnode.config.declaration import ABSENT, Setting, nearest, option, settings_of
from psnode.config.names import names_code, names_codec_file, names_logger_file
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError

_BUILT_IN = ("network", "dataset", "data_dir", "download")  # settings of the built-in task
# values of --scheme: the automatic choice, and its result for every run (docs/decisions/default-scheme.md)
AUTO, DEFAULT_SCHEME = "auto", "polar-2bit"
EARLIER_DEFAULTS = ("topk", "atomo")
# torch's optimizers: those with two betas, all that work coordinate by coordinate, and those that need whole tensors
WITH_BETAS = ("adam", "adamw", "nadam", "radam", "adamax")
COORDINATEWISE = (*WITH_BETAS, "rmsprop", "adagrad", "adadelta")
BY_TENSOR = ("adafactor", "asgd", "rprop")
DESCENTS = ("sgd", "asgd")  # optimizers whose updates are sums of gradients, not divided by the gradients' size
OWN = "task"
# values of --plan other than a file: the rule of psnode.plans.rule, and the fastest of some schemes in trial steps
BY_RULE, BY_TRIAL = "rule", "auto"
SHARDED = "sharded:servers="  # of --topology, before the number of servers
UNDECIDED = "auto"  # of --topology, until rank 0 has decided at the start of the job
_MOST_LOCAL = 256  # threads of one process, of which each is a rank
DEFAULT_EPOCHS = 10  # enough for LeNet to pass 97 % on the embedded digits


def servers_in(topology: str) -> int:
    """Return the number of servers, rank 0 among them, that a value of --topology names; 0 if it names no number."""
    number = topology.removeprefix(SHARDED)
    return int(number) if number != topology and number.isdecimal() and number.isascii() else 0


@dataclass(frozen=True)
class Config:
    """All settings of a training run.

    Constructing it with a value of the wrong type or out of bounds raises ConfigurationError; `validate` checks the fields
    against each other. Sizes are in bytes and times in seconds unless the help says otherwise.
    """

    # training
    task: str | None = option(
        None, "Your own task: path/to/task.py or package.module.", metavar="FILE|MODULE", names_code=names_code
    )
    task_option: tuple[str, ...] = option((), "A setting passed to the task; repeatable.", metavar="KEY=VALUE", repeated=True)
    network: str = option("LeNet", "The network: LeNet, FC, ResNet18, VGG11, ..., torchvision:NAME or timm:NAME.")
    dataset: str = option("digits", "The data: digits (embedded), MNIST, Cifar10, Cifar100, SVHN, imagefolder or synthetic.")
    data_dir: Path | None = option(None, "Directory of the data set's files.", metavar="DIR", free=True)
    download: bool = option(False, "Let torchvision fetch the data set into --data-dir.", free=True)
    synthetic_shape: tuple[int, ...] = option(
        (3, 32, 32),
        "Shape of a synthetic image: channels,height,width.",
        metavar="C,H,W",
        minimum=1,
        needs=("dataset", "synthetic"),
    )
    synthetic_classes: int = option(10, "Number of synthetic classes.", minimum=2, needs=("dataset", "synthetic"))
    synthetic_examples: int = option(4096, "Number of synthetic training examples.", minimum=1, needs=("dataset", "synthetic"))
    batch_size: int = option(32, "Examples per worker and backward pass.", minimum=1)
    data_workers: int = option(
        0, "Processes that load a worker's batches; 0: a thread of the worker, or the worker itself.", minimum=0, maximum=256,
        free=True, before=0,
    )  # fmt: skip
    test_batch_size: int = option(
        1000, "Examples per batch of the evaluator.", minimum=1, free=True, aliases=("--eval-batch-size",)
    )
    seed: int = option(1, "Seed of every random number.", minimum=0, maximum=2**63 - 1)
    init_from: Path | None = option(
        None, "Begin with the weights of a run, a checkpoint, or a safetensors file.", metavar="PATH", free=True, before=None
    )
    new_head: bool = option(
        False,
        "Reinitialise the last layer, whose number of classes differs in the source; with --init-from.",
        free=True,
        before=False,
    )
    enable_gpu: bool = option(False, "Compute on CUDA if there is a device.", free=True)
    gpu_master: bool = option(
        False, "Also let the master add, update and code on a CUDA device of its host.", free=True, before=False
    )
    precision: str = option(
        "fp32", "Data type of the workers' forward and backward passes; bf16: torch.autocast with float32 weights.",
        metavar="fp32|bf16", choices=("fp32", "bf16", "fp16"), before="fp32",
    )  # fmt: skip
    threads: int = option(
        0, "Compute threads per rank; auto: OMP_NUM_THREADS, or the cores of the machine divided by its ranks.", minimum=0,
        words={"auto": 0}, free=True,
    )  # fmt: skip

    # optimisation
    optimizer: str = option(
        "sgd", "The master's optimizer; task: the optimizer that Task.optimizer returns, from torch or your own.",
        choices=("sgd", *COORDINATEWISE, *BY_TENSOR, OWN),
    )  # fmt: skip
    optimizer_option: tuple[str, ...] = option(
        (), "Any other argument of torch's optimizer; repeatable.", metavar="KEY=VALUE", repeated=True,
        needs=("optimizer", (*COORDINATEWISE, *BY_TENSOR)), before=(),
    )  # fmt: skip
    lr: float | None = option(
        None, "Learning rate before the schedule; default: the scheme's, which is 0.01, or 0.1 without momentum, or 0.0005 "
        "if every coordinate moves by the rate itself.",
        above=0,
    )  # fmt: skip
    momentum: float | None = option(
        None,
        "Momentum of SGD and RMSprop, first beta of Adam and its relatives; default: the scheme's, which is 0.9 unless the "
        "paper says 0.",
        minimum=0,
        maximum=0.9999,
    )
    nesterov: bool = option(False, "Use Nesterov momentum.", needs=("optimizer", "sgd"))
    beta2: float = option(
        0.999,
        "The second beta of Adam and its relatives.",
        minimum=0,
        maximum=0.999999,
        needs=("optimizer", WITH_BETAS),
        before=0.999,
    )
    eps: float | None = option(
        None, "Term in the optimizer's denominator; default: torch's.", minimum=0, maximum=1,
        needs=("optimizer", COORDINATEWISE), before=None,
    )  # fmt: skip
    weight_decay: float = option(0.0, "L2 penalty (decoupled with adamw and adafactor).", minimum=0)
    no_decay: tuple[str, ...] = option(
        (), "Parameters without --weight-decay: those of norm layers, biases, embeddings, or all with at most one dimension.",
        metavar="norm,bias,embedding,1d", choices=("norm", "bias", "embedding", "1d"), before=(),
    )  # fmt: skip
    clip_grad_norm: float | None = option(None, "Maximum norm of the mean gradient over all tensors.", above=0, before=None)
    clip_estimate: str = option(
        "exact", "The norm used by --clip-grad-norm: exact (updates wait for the last group), or previous (the norm of the "
        "previous step).",
        choices=("exact", "previous"), before="exact",
    )  # fmt: skip
    ema_decay: float | None = option(
        None, "Keep a moving average of the weights with this decay in the checkpoints; psnode evaluate --ema evaluates it.",
        above=0, maximum=0.999999, before=None,
    )  # fmt: skip
    lr_schedule: str = option(
        "constant", "Learning-rate schedule; task: the schedule in Task.learning_rate.",
        choices=("constant", "shrink", "multistep", "cosine", "poly", "wsd", "onecycle", "task"),
    )  # fmt: skip
    lr_shrinkage: float = option(
        0.95, "Factor per epoch of the shrink schedule.", above=0, maximum=1, needs=("lr_schedule", "shrink"), implies=True
    )
    lr_shrink_steps: int | None = option(
        None, "Steps between multiplications of the shrink schedule, instead of an epoch.", minimum=1,
        needs=("lr_schedule", "shrink"), implies=True, before=None,
    )  # fmt: skip
    lr_milestones: tuple[int, ...] = option(
        (), "Epochs after which multistep multiplies by --lr-gamma.", metavar="E1,E2,...", minimum=1,
        needs=("lr_schedule", "multistep"), implies=True,
    )  # fmt: skip
    lr_milestone_steps: tuple[int, ...] = option(
        (), "Milestones in steps instead of "
        "epochs.", metavar="S1,S2,...", minimum=1, needs=("lr_schedule", "multistep"), implies=True, before=(),
    )  # fmt: skip
    lr_gamma: float = option(
        0.1, "Factor at each milestone.", above=0, maximum=1, needs=("lr_schedule", "multistep"), implies=True
    )
    lr_power: float = option(1.0, "Exponent of the poly schedule.", above=0, needs=("lr_schedule", "poly"), implies=True)
    lr_decay_epochs: float | None = option(
        None, "Epochs of linear decay at the end of wsd (warm-up, stable, decay); default: a tenth of the run.",
        above=0, needs=("lr_schedule", "wsd"), implies=True, before=None,
    )  # fmt: skip
    lr_decay_steps: int | None = option(
        None,
        "Length of wsd's decay in steps instead of epochs.",
        minimum=1,
        needs=("lr_schedule", "wsd"),
        implies=True,
        before=None,
    )
    lr_start_factor: float = option(
        0.04, "Initial factor of onecycle, times --lr.", above=0, maximum=1, needs=("lr_schedule", "onecycle"), before=0.04
    )
    lr_peak: float = option(
        0.3,
        "Fraction of the run after which onecycle reaches --lr.",
        above=0,
        maximum=1,
        needs=("lr_schedule", "onecycle"),
        before=0.3,
    )
    lr_end_factor: float = option(
        0.0, "Final factor of cosine, poly, wsd and onecycle, times --lr.", minimum=0, maximum=1,
        needs=("lr_schedule", ("cosine", "poly", "wsd", "onecycle")), before=0.0,
    )  # fmt: skip
    warmup_epochs: float = option(0.0, "Epochs of linear warm-up before the schedule.", minimum=0)
    warmup_steps: int = option(0, "Length of the warm-up in steps instead of epochs.", minimum=0, before=0)
    max_steps: int | None = option(None, "Maximum number of updates.", minimum=1, free=True)
    epochs: int | None = option(
        None, f"Maximum number of passes over the data; the run ends at this limit or at --max-steps; default: {DEFAULT_EPOCHS} "
        "epochs.",
        minimum=1, free=True,
    )  # fmt: skip
    stop_after: int | None = option(
        None, "End this start at this step. Schedules still follow --max-steps and --epochs, and --resume runs to their end.",
        minimum=1, free=True, before=None,
    )  # fmt: skip
    batches_per_step: int = option(1, "Backward passes whose mean gradient makes one step.", minimum=1)

    weighted_mean: bool = option(
        False,
        "Weight every gradient by the number of items in its loss (Task.size), for example tokens, instead of equally.",
        before=False,
    )

    # communication
    scheme: str = option(
        AUTO,
        f"A paper's combination, NAME[:k=v,...][+STAGE]; parameters and stages apply to its codec. auto: {DEFAULT_SCHEME}.",
        aliases=("--code",),
    )
    codec: str | None = option(
        None,
        "Codec instead of the scheme's; path/to/codec.py:NAME[:k=v] is a codec of your own.",
        metavar="SPEC",
        names_code=names_codec_file,
    )
    feedback: str | None = option(None, "Feedback instead of the scheme's: none, ef, dgc or ema[:k=v,...].", metavar="SPEC")
    aggregator: str | None = option(
        None, "Aggregator instead of the scheme's; mean:clip=median scales a worker's gradient of a group to at most the median "
        "norm of the round.",
        choices=("mean", "majority", "mean:clip=median"),
    )  # fmt: skip
    downlink: str | None = option(
        None, "Downlink instead of the scheme's: dense, or the codec of the changes of the weights.", metavar="SPEC"
    )
    downlink_lead: float | None = option(
        None, "Lead instead of the scheme's: the master sends coded weights that are ahead of its own by this multiple of their "
        "last change, since coding delays them; 0.8 was measured at one bit a coordinate (docs/results/2026-11-26-front.md).",
        minimum=0, maximum=10, before=0.0,
    )  # fmt: skip
    svd_rank: int | None = option(None, "Rank of the scheme's svd codec.", minimum=1, maximum=4096)
    quantization_level: int | None = option(
        None, "Bits per magnitude of the scheme's qsgd codec: levels=2**N-1.", minimum=1, maximum=8
    )
    sparsity_warmup_epochs: float | None = option(
        None, "Epochs until the ratio reaches the codec's own; default: one epoch per ratio of the scheme's warm-up.", minimum=0
    )
    bucket_size: int | None = option(None, "Bucket of the scheme's codec, in coordinates.", minimum=1)
    small_tensors: str = option(
        "plain", "Tensors with one dimension or below --min-compress-bytes: plain (uncompressed), or coded together with others.",
        choices=("plain", "coded"), replans=True, before="plain",
    )  # fmt: skip
    min_compress_bytes: int = option(
        4096, "Send smaller tensors uncompressed.", minimum=0, needs=("small_tensors", "plain"), replans=True
    )
    group_by: str = option("bytes", "Tensors that share a frame.", choices=("layer", "bytes", "model"), replans=True)
    group_bytes: int = option(
        0, "Maximum float32 bytes of a group; auto: 16 MiB, or the size that is faster in a few trial steps.",
        minimum=0, words={"auto": 0}, needs=("group_by", "bytes"), replans=True,
    )  # fmt: skip
    plan: str = option(
        BY_RULE, "Groups and codecs: by rule; auto, the fastest of the scheme, bf16 and dense in trial steps; or FILE, written "
        "by psnode plan --save-plan.",
        metavar="rule|auto|FILE", replans=True, before=BY_RULE,
    )  # fmt: skip
    overlap: bool = option(True, "Begin the next forward pass while weights are still arriving.", free=True)
    comm_type: str | None = option(
        None, "Accepted for scripts of ps_pytorch: psnode has one exchange, point-to-point in both directions.",
        choices=("Bcast", "Async"), free=True,
    )  # fmt: skip

    # rounds
    topology: str = option(
        "star", "Where gradients are added up and weights updated: star on rank 0; sharded:servers=N a part on rank 0 and on "
        "each of the last N - 1 ranks, which compute no gradients; mesh a part on every worker; mesh:master=auto on rank 0 too; "
        "gather all on every worker; star:down=tree on rank 0, and workers pass the weights on; auto the "
        "topology without further ranks whose step is the shortest, as predicted from measurements at the start.",
        choices=("star", "mesh", "mesh:master=auto", "gather", "star:down=tree", UNDECIDED), numbered=(SHARDED,), before="star",
        replans=True,
    )  # fmt: skip
    consistency: str = option(
        "bsp", "The rule that closes a round: bsp all gradients; kofn the first --num-aggregate, later ones are dropped; "
        "ssp gradients at most --staleness versions old; asp gradients of any age.",
        choices=("bsp", "kofn", "ssp", "asp"),
    )  # fmt: skip
    num_aggregate: int | None = option(
        None, "Number of gradients that a round waits for; with bsp the number of workers; with ssp and asp default 1.", minimum=1
    )
    staleness: int = option(
        1, "Maximum age of a gradient: the number of versions between the weights it was computed on and those it updates.",
        minimum=0, needs=("consistency", "ssp"),
    )  # fmt: skip
    aggregate_order: str = option(
        "rank", "Order in which gradients are added: rank, for reproducible sums, or arrival.", choices=("rank", "arrival")
    )
    start_deadline: float = option(60.0, "Seconds within which all ranks must report at the start.", above=0, free=True)
    deadline: float | None = option(
        None, "Seconds of a round after which workers that block it are suspended; auto: median + max(5, 6 MAD) of recent "
        "rounds; "
        "default: with bsp --pause-deadline, or auto if auto is longer; with the other rules auto.",
        minimum=0, words={"auto": 0.0}, free=True,
    )  # fmt: skip
    pause_deadline: float = option(
        120.0, "Seconds for phases known to take longer: first rounds, checkpoints, comparisons of weights, new epochs, "
        "a master that does not answer.",
        above=0, free=True,
    )  # fmt: skip
    spares: int = option(0, "Additional ranks that follow the weights and replace lost workers.", minimum=0, free=True)
    stop_deadline: float = option(
        20.0, "Seconds after a stop request until the job continues without ranks that have not finished the last round "
        "and checkpoint; under psnode launch 0.7 of --kill-after unless given.",
        above=0, free=True,
    )  # fmt: skip
    min_workers: int = option(
        1, "Continue after deaths while at least this many workers are left; else stop with a checkpoint.", minimum=1, free=True
    )
    norm_cap: float = option(
        1e6, "Gradients to refuse: auto, implausible ones (a norm out of float32's range, or 1e6 times all earlier ones); a "
        "number, also those above that many times the workers' usual norm (docs/security.md); off.",
        above=1, maximum=10, words={"auto": 1e6, "off": 0.0}, free=True, before=0.0,
    )  # fmt: skip
    hash_every: int = option(50, "Steps between comparisons of the workers' weights; 0: never.", minimum=0, free=True)

    # records
    train_dir: Path | None = option(
        None,
        "Output directory of the run; default runs/NETWORK-DATASET-SCHEME.",
        metavar="DIR",
        free=True,
        aliases=("--model-dir",),
    )
    eval_freq: int = option(50, "Steps between checkpoints; 0: only at the end.", minimum=0, free=True)
    checkpoint_minutes: float = option(
        0.0,
        "Maximum minutes between checkpoints; 0: only --eval-freq counts.",
        minimum=0,
        free=True,
        before=0.0,
    )
    checkpoint_memory: int = option(
        0, "Bytes of memory for copies of data that training changes before a checkpoint has written it; "
        "when the memory is used up, updates wait; auto: a quarter of the free memory.",
        minimum=0, words={"auto": 0}, free=True, before=0,
    )  # fmt: skip
    checkpoint_residuals: str = option(
        "full", "Precision of the workers' memories in checkpoints; bf16 halves the bytes, none leaves them out. A resumed run "
        "then differs from an unbroken one, with bf16 by a rounding, with none by all of these memories.",
        choices=("full", "bf16", "none"), free=True, before="full",
    )  # fmt: skip
    keep_last: int = option(
        3, "Checkpoints to keep, besides the newest that is known to be sound and the best evaluated one; 0: all.",
        minimum=0, free=True,
    )  # fmt: skip
    resume: bool = option(False, "Resume from the last checkpoint in --train-dir.", free=True)
    trust_run: bool = option(
        False, "Execute the code named in the run's record (--task) without naming it again; with --resume.",
        free=True, before=False,
    )  # fmt: skip
    log_interval: int = option(10, "Steps between progress lines.", minimum=1, free=True)
    timeline: bool = option(False, "Write timeline.json, a Chrome trace of every rank.", free=True)
    record_history: bool = option(False, "Write history.jsonl: the gradients that made each version of the weights.", free=True)
    tensorboard: bool | None = option(None, "Write files for TensorBoard; default: yes if the package is installed.", free=True)
    log_to: tuple[str, ...] = option(
        (), "Also log the run to these loggers; path/to/logger.py:NAME is a logger of your own.", metavar="wandb,mlflow,trackio",
        names_code=names_logger_file, free=True, before=(),
    )  # fmt: skip

    # execution
    local: int | None = option(
        None,
        "Run the master and this number of workers in one process, without MPI.",
        metavar="P",
        minimum=1,
        maximum=_MOST_LOCAL,
        free=True,
    )
    memory_check: bool = option(
        True, "Refuse to begin if the ranks of a host will need more memory than it has left.", free=True, before=True
    )
    allow_unlike_versions: bool = option(
        False, "Train even if a rank runs another version or commit of psnode than rank 0.", free=True, before=False
    )
    quiet: bool = option(False, "Print only warnings and errors.", free=True, before=False)
    debug: bool = option(False, "Show the traceback of every error, also of errors that psnode reports in one line.", free=True)

    def __post_init__(self) -> None:
        for setting in settings().values():
            object.__setattr__(self, setting.name, setting.check(getattr(self, setting.name), setting.flag))
        if self.scheme == AUTO:
            object.__setattr__(self, "scheme", DEFAULT_SCHEME)

    def validate(self, given: Container[str] = ()) -> None:
        """Check the fields against each other. Raises ConfigurationError if they contradict each other.

        `given`: names of the fields that the user set, even if to the default.
        """
        for setting in settings().values():
            needs, is_set = setting.rules.needs, getattr(self, setting.name) != setting.default or setting.name in given
            if needs is not None and is_set and not self.applies(setting):
                name, value = needs
                wanted = value if isinstance(value, str) else " or ".join(value)
                raise ConfigurationError(
                    f"{setting.flag} needs {settings()[name].flag} {wanted}, not {getattr(self, name)}: drop one of the two"
                )
        for name in _BUILT_IN:
            if self.task and (name in given or getattr(self, name) != settings()[name].default):
                raise ConfigurationError(f"{settings()[name].flag} has no meaning with --task: pass the task a --task-option")
        self._check_schedule()
        if len(self.synthetic_shape) != 3:
            raise ConfigurationError(f"--synthetic-shape must be channels,height,width, not {self.synthetic_shape}")
        if self.nesterov and self.momentum == 0:
            raise ConfigurationError("--nesterov needs --momentum above 0: drop one of the two")
        self._check_optimizer()
        if self.precision == "fp16":
            raise ConfigurationError(
                "--precision fp16 needs a GradScaler, but gradients leave a worker before it could unscale them or skip a step: "
                "use bf16, whose range is that of float32"
            )
        if self.clip_grad_norm is None and self.clip_estimate != "exact":
            raise ConfigurationError("--clip-estimate needs --clip-grad-norm: give the bound, or leave it out")
        if self.no_decay and not self.weight_decay:
            raise ConfigurationError("--no-decay needs --weight-decay above 0: drop one of the two")
        if self.resume and "init_from" in given:
            raise ConfigurationError("--init-from has no meaning with --resume, which takes the run's own weights: drop one")
        if self.topology == UNDECIDED and self.plan not in (BY_RULE, BY_TRIAL):
            raise ConfigurationError(
                f"--topology {UNDECIDED} has no meaning with --plan FILE, whose plan names one: leave it out"
            )
        if "tensorboard" in self.log_to and self.tensorboard is False:
            raise ConfigurationError("--log-to tensorboard and --no-tensorboard contradict each other: drop one of the two")
        if self.new_head and (self.init_from is None or self.resume):
            raise ConfigurationError("--new-head needs --init-from, in a new run: leave it out")
        if self.download and self.data_dir is None:
            raise ConfigurationError("--download needs --data-dir: name the directory to fetch into")
        if self.stop_after is not None and self.max_steps is not None and self.stop_after >= self.max_steps:
            raise ConfigurationError(f"--stop-after {self.stop_after} is not before --max-steps {self.max_steps}: leave it out")
        self.task_options()
        if self.local is not None:
            if self.spares:
                raise ConfigurationError(
                    "--spares has no meaning with --local, whose workers cannot be lost: drop one of the two"
                )
            if self.local + self.servers > _MOST_LOCAL:
                raise ConfigurationError(
                    f"--local has at most {_MOST_LOCAL} workers and servers in one process, not {self.local} and {self.servers}: "
                    "name fewer servers in --topology"
                )
            self.check_workers(self.local)

    def _check_optimizer(self) -> None:
        """Raise ConfigurationError for settings that the optimizer does not have."""
        if self.momentum is not None and self.optimizer not in ("sgd", "rmsprop", *WITH_BETAS):
            raise ConfigurationError(f"--momentum has no meaning with --optimizer {self.optimizer}: leave it out")
        if self.weight_decay and self.optimizer in ("rprop", OWN):
            where = "say it in Task.optimizer" if self.optimizer == OWN else "leave it out"
            raise ConfigurationError(f"--weight-decay has no meaning with --optimizer {self.optimizer}: {where}")
        self.optimizer_options()

    def _check_schedule(self) -> None:
        """Raise ConfigurationError for settings of the learning rate that contradict each other."""
        milestones = self.lr_milestone_steps or self.lr_milestones
        rising = tuple(sorted(set(milestones)))
        if self.lr_schedule == "multistep" and (not rising or rising != milestones):
            flag, what = ("--lr-milestone-steps", "steps") if self.lr_milestone_steps else ("--lr-milestones", "epochs")
            raise ConfigurationError(f"{flag} must be rising {what} such as 30,60,90 for the multistep schedule")
        for epochs, steps in (("lr_milestones", "lr_milestone_steps"), ("lr_decay_epochs", "lr_decay_steps")):
            if getattr(self, epochs) and getattr(self, steps):
                flags = [settings()[name].flag for name in (epochs, steps)]
                raise ConfigurationError(
                    f"{flags[0]} and {flags[1]} say the same in epochs and in steps: leave one of the two out"
                )
        if self.warmup_epochs and self.warmup_steps:
            raise ConfigurationError(
                "--warmup-epochs and --warmup-steps both set the length of the warm-up: leave one of the two out"
            )
        if self.lr_schedule == "onecycle" and (self.warmup_epochs or self.warmup_steps):
            raise ConfigurationError("--lr-schedule onecycle has a warm-up of its own, until --lr-peak: leave the other one out")

    def check_workers(self, workers: int) -> None:
        """Raise ConfigurationError if the number of workers contradicts the settings."""
        if workers < 1:
            raise ConfigurationError(
                "a job needs a master and a worker in addition to its --spares and the servers of --topology: start more ranks "
                "(at least mpirun -n 2), or use --local P"
            )
        if self.min_workers > workers:
            raise ConfigurationError(f"--min-workers is {self.min_workers}, the job has {workers}: lower it")
        if self.consistency == "kofn" and self.num_aggregate is None:
            raise ConfigurationError("--consistency kofn needs --num-aggregate: how many gradients close a round")
        if self.consistency == "bsp" and self.num_aggregate not in (None, workers):
            raise ConfigurationError(
                f"--num-aggregate must be the number of workers, {workers}, under bsp, not {self.num_aggregate}: "
                "leave it out, or choose --consistency kofn"
            )
        if (self.num_aggregate or 0) > workers:
            raise ConfigurationError(f"--num-aggregate is {self.num_aggregate}, the job has {workers} workers: lower it")

    def task_options(self) -> dict[str, str]:
        """Return `task_option` as a mapping."""
        return _pairs("--task-option", self.task_option)

    def optimizer_options(self) -> dict[str, str]:
        """Return `optimizer_option` as a mapping."""
        return _pairs("--optimizer-option", self.optimizer_option)

    @property
    def whole_tensors(self) -> bool:
        """Return True if the optimizer needs whole tensors, so that groups must end at the ends of tensors."""
        return self.optimizer in (*BY_TENSOR, OWN)

    @property
    def sends_weights(self) -> bool:
        """True if weights are sent in every step. No weights are sent if every worker updates all weights itself."""
        return self.topology != "gather"

    @property
    def servers(self) -> int:
        """Return the number of ranks besides the master that update weights and compute nothing; they are the last ranks."""
        return max(0, servers_in(self.topology) - 1)

    @property
    def saves_amid(self) -> bool:
        """Return True if checkpoints are made during training as well as at the end."""
        return self.eval_freq > 0 or self.checkpoint_minutes > 0

    @property
    def weight_unit(self) -> int | None:
        """Return the weight that counts as one gradient under --weighted-mean; None if every gradient counts as one."""
        return self.batch_size * self.batches_per_step if self.weighted_mean else None

    @property
    def directory(self) -> Path:
        """Return `train_dir`, or by default a path named after network and data set, or after the task, and after the scheme."""
        if self.train_dir is not None:
            return self.train_dir
        what = f"{self.network}-{self.dataset}" if self.task is None else Path(self.task).stem
        return Path("runs") / re.sub(r"[^\w.+=-]+", "-", f"{what}-{self.scheme}").lower()

    def last_step(self, steps_per_epoch: int, epoch_offset: int = 0) -> int:
        """Return the step after which this start of the run ends: --stop-after, or the end of the run if that is earlier."""
        total = self.total_steps(steps_per_epoch, epoch_offset)
        return total if self.stop_after is None else min(total, self.stop_after)

    def total_steps(self, steps_per_epoch: int, epoch_offset: int = 0) -> int:
        """Return the last step of the run.

        After step t, the number of complete epochs is (t + epoch_offset) / steps_per_epoch.
        """
        epochs = DEFAULT_EPOCHS if self.epochs is None and self.max_steps is None else self.epochs
        ends = [self.max_steps, epochs and epochs * steps_per_epoch - epoch_offset]
        return min(end for end in ends if end is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return every field, in types that JSON has."""
        return {name: plain(getattr(self, name)) for name in settings()}

    def stated(self) -> dict[str, Any]:
        """Return the settings that have a value and apply to this configuration, in types that JSON has.

        An equal configuration can be constructed from these settings.
        """
        idle = _BUILT_IN if self.task else ()
        return {
            name: plain(getattr(self, name))
            for name, setting in settings().items()
            if getattr(self, name) is not None and name not in idle and self.applies(setting)
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` recorded.

        A setting that did not exist when the record was written gets the value that reproduces the behaviour of that time.
        Raises ConfigurationError for unknown names, and for missing names of settings that existed then.
        """
        newer = {name: setting.rules.before for name, setting in settings().items() if setting.rules.before is not ABSENT}
        fields = {**newer, **fields}
        if unknown := [name for name in fields if name not in settings()]:
            raise ConfigurationError(f"unknown setting {unknown[0]!r}{nearest(unknown[0], settings())}")
        if missing := [name for name in settings() if name not in fields]:
            raise ConfigurationError(f"setting {missing[0]!r} is missing: the configuration is of another version of psnode")
        return cls(**fields)

    def applies(self, setting: Setting) -> bool:
        """Return True if `setting` has a meaning in this configuration.

        This is so if its rule `needs` is None, or if the field that `needs` names has one of the values that `needs`
        accepts.
        """
        needs = setting.rules.needs
        if needs is None:
            return True
        name, value = needs
        return str(getattr(self, name)).casefold() in ((value,) if isinstance(value, str) else value)

    def digest(self) -> int:
        """Return the xxh3_64 of the canonical JSON of the settings that define the run."""
        fields = {name: value for name, value in self.to_dict().items() if not settings()[name].rules.free}
        return xxhash.xxh3_64_intdigest(to_json(fields, sort_keys=True, separators=(",", ":")).encode())


def _pairs(flag: str, items: tuple[str, ...]) -> dict[str, str]:
    """Return the KEY=VALUE `items` as a dictionary.

    Raises ConfigurationError for an item of another form, and for a key that appears twice.
    """
    found: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals or key in found:
            problem = "names a key twice" if key in found else "must be KEY=VALUE"
            raise ConfigurationError(f"{flag} {problem}, not {item!r}")
        found[key] = value
    return found


def plain(value: Any) -> Any:
    """Return a setting's value in a type that JSON has."""
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value


@functools.cache
def settings() -> Mapping[str, Setting]:
    """Return every field of `Config` as a `Setting`, by name, for the command line, the environment and the TOML file."""
    return settings_of(Config)
