"""A session: the program keeps its training loop, while psnode's parameter server trains the model.

    with psnode.session(model, train_dir="runs/mine", scheme="topk:ratio=0.01", lr=0.1, max_steps=1000) as s:
        for x, y in s.batches(loader):
            loss = cross_entropy(model(x), y)
            loss.backward()
            s.step(loss)

Every rank of an MPI job runs the program. Rank 0 is the master, which serves inside `s.batches` and gets no batches. The other
ranks are workers, except for the servers and spares that the settings ask for. Without MPI the program is the only worker, rank
1, and the master is a thread of its process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from psnode.config import streams
from psnode.config.logs import hushed, shown
from psnode.config.parent import follow_parent
from psnode.config.train_settings import OWN
from psnode.errors import ConfigurationError, PsnodeError, TransportError, in_one_line
from psnode.jobs import job_end
from psnode.jobs.job import exit_code_of, exit_without_mpi, hello, limit_threads, refuse_to_run_anew, signals
from psnode.jobs.sessions import alone
from psnode.jobs.sessions.figures import Figures, RecordedFigures, WorkerBatches, before_the_loop, epoch_of, workers_at_end
from psnode.jobs.sessions.session_settings import BACKWARD, configured, holds, parameters_beside, with_own_rate
from psnode.jobs.sessions.words import in_words_of_program, of_program, refuse_torchrun
from psnode.plans.roles import MASTER, Layout
from psnode.protocol.channel import TAG, FrameChannel, RemoteFailureError
from psnode.records.metrics import SUMMARY
from psnode.transport.barrier import send_hello
from psnode.transport.mpi.environment import WorldRank, place

if TYPE_CHECKING:
    import torch

    from psnode.config import Config
    from psnode.config.schedules import OwnRate
    from psnode.task import Batch
    from psnode.tasks.own_loop import Constraint, OwnLoop, ParameterGroups
    from psnode.transport.base import Transport
    from psnode.worker.serving_rank import ServingRank
    from psnode.worker.stepwise import StepwiseWorker

_LOG = logging.getLogger(__name__)

_FINAL_TAG = 1  # tag of the messages with the final weights


class Session:
    """One rank's part of a job in which the program has its own training loop. A session is a context manager.

    * settings: those of `psnode train`, by their names in Config
    * constrain(model): restores constraints on the weights after each update, like Task.constrain
    * parameter_groups: groups of parameters with their own settings, in the format of torch.optim (Task.parameter_groups)
    * learning_rate(step, lr=, steps_per_epoch=, total_steps=): the program's own schedule (Task.learning_rate)
    * optimizer: a name, or a function that creates the optimizer of each tensor (Task.optimizer)
    * gradients: with "backward", gradients are sent during the backward pass; with "step", they are sent when `step` is
      called, so that the loop can change them before
    * beside: modules or parameters that the loss depends on, but that the loop itself trains

    When the block ends, the model of every rank has the weights of the last checkpoint, in its own memory.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        *,
        train_dir: Path | str,
        constrain: Constraint | None = None,
        parameter_groups: ParameterGroups = (),
        learning_rate: OwnRate | None = None,
        gradients: str = BACKWARD,
        beside: Sequence[torch.nn.Module | torch.nn.Parameter] = (),
        **settings: Any,
    ) -> None:
        refuse_to_run_anew()
        here = place()
        if here is None:
            refuse_torchrun(Path(sys.argv[0]).name)
        elif here.size < 2:
            raise ConfigurationError("a session needs a master and at least one worker: mpirun -n 3 python PROGRAM")
        self._is_alone = here is None
        here = here or WorldRank(alone.WORKER, 2)
        if constrain is not None and not callable(constrain):
            raise ConfigurationError(f"constrain must be a function of the model, not {constrain!r}")
        if learning_rate is not None:
            settings = with_own_rate(settings)
        self._rate, self._optimizer = learning_rate, None
        if callable(optimizer := settings.get("optimizer")) and not isinstance(optimizer, type):
            self._optimizer, settings = optimizer, {**settings, "optimizer": OWN}
        self._model, self._constraint, self._groups = model, constrain, parameter_groups
        self._holds, self._beside = holds(gradients), parameters_beside(beside)
        try:
            self._config = configured(model, {**settings, "train_dir": Path(train_dir)}, here, alone=self._is_alone)
        except ConfigurationError as error:
            raise in_words_of_program(error) from None
        self.rank, self.size = here
        self._stack = contextlib.ExitStack()
        self._transport: Transport | None = None
        self._master: alone.MasterThread | None = None  # only in a program that is started without MPI
        self._worker: StepwiseWorker | None = None
        self._figures: Figures | None = None
        self._loader: Iterable[Batch] | None = None
        self._leads = False  # True if rank 0 has begun to serve
        self._over = False  # True if the run has ended and the model holds the final weights
        self._updates = 0
        job_end.begin()

    @property
    def is_master(self) -> bool:
        """Return True on the rank that runs the master: on rank 0, and in a program that was started without MPI."""
        return self._is_alone or self._serves

    @property
    def _serves(self) -> bool:
        return self.rank == MASTER

    @property
    def steps_per_epoch(self) -> int:
        """Return the number of steps of the job in an epoch.

        Like all figures of a session, it is known only after s.batches(loader) was called.
        """
        return self._known("steps_per_epoch").steps_per_epoch

    @property
    def total_steps(self) -> int:
        """Return the number of steps of the whole run."""
        return self._known("total_steps").total_steps

    @property
    def epoch(self) -> int:
        """Return the number of finished epochs."""
        return self._known("epoch").epoch

    @property
    def lr(self) -> float:
        """Return the learning rate of the last step, as in metrics.jsonl.

        Before the first step, return the rate that this step will have.
        """
        return self._known("lr").lr

    @property
    def gradient_norm(self) -> float | None:
        """Return the L2 norm of the mean gradient of the last step, before clipping; None without clip_grad_norm."""
        return self._known("gradient_norm").gradient_norm

    def _known(self, name: str) -> Figures:
        if self._figures is None:
            raise before_the_loop(name)
        return self._figures

    @property
    def version(self) -> int:
        """Return the version of the model's weights: the number of updates that they contain."""
        return self._updates if self._over or self._worker is None else self._worker.version

    def __enter__(self) -> Self:
        streams.outlast()
        limit_threads(self._config.threads or 1)  # until all ranks of this machine are known
        self._stack.enter_context(shown(0 if self._is_alone else self.rank, of_program))
        self._stack.enter_context(hushed(self._config.quiet))
        self._transport = self._alone() if self._is_alone else self._mpi()
        self._stack.enter_context(signals(self._transport.inbox(TAG)))
        watched = None if self._serves else {MASTER}
        self._link = FrameChannel(self._transport, watched=watched)
        self._final = FrameChannel(self._transport, _FINAL_TAG, watched=watched)
        if not self._serves:
            send_hello(self._transport, hello())
        return self

    def _mpi(self) -> Transport:
        from psnode.transport.mpi import endpoint as mpi

        follow_parent(signal.SIGTERM)
        try:
            return mpi.start(seconds=self._config.start_deadline)
        except PsnodeError as error:
            _LOG.error("error: %s", error)
            self._stack.close()
            job_end.end(error.exit_code)
            raise SystemExit(error.exit_code) from error

    def _alone(self) -> Transport:
        _LOG.info(
            "started alone: one worker and the master in this process, and no exchange over a network; psnode launch -n 2 -- %s "
            "starts two workers",
            Path(sys.argv[0]).name,
        )
        self._far_end, own = alone.ends()
        return own

    def batches(self, loader: Iterable[Batch], *, steps_per_epoch: int | None = None) -> WorkerBatches:
        """Return an iterator over this worker's batches, which are on the training device, until the run is over.

        On rank 0, and on the servers of `topology="sharded:servers=N"`, serve until the run is over, and return an empty
        iterator. The length of the iterator is the number of remaining batches.

        loader: a DataLoader(dataset, batch_size=N, shuffle=True) of a data set with indices, or any iterable of batches. The
            examples of a DataLoader are distributed anew in every epoch, N to each worker in each batch, and a resumed run
            continues with the same examples as an unbroken run. An iterable must give each worker different batches. The iterable
            is started again when it ends, and a resumed run begins with its first batch.
        steps_per_epoch: for an iterable without a length.
        """
        if self._over:
            return WorkerBatches(lambda: None, 0)
        if self._transport is None:
            raise ConfigurationError("the session has not begun: write `with psnode.session(...) as s:` around the loop")
        if self._loader is None:
            self._loader = loader
            self._begin(loader, steps_per_epoch)
        elif self._loader is not loader:
            raise ConfigurationError("s.batches was called with another loader: a session has one")
        return WorkerBatches(self._draw, 0 if self._worker is None else self._worker.batches_left)

    def _draw(self) -> Batch | None:
        if self._worker is not None and not self._over and (batch := self._worker.draw()) is not None:
            return batch
        self._finish()
        return None

    def backward(self, loss: torch.Tensor, weight: int | None = None) -> None:
        """Call `loss.backward()`, with the loss multiplied by the weight of its batch in the step.

        With batches_per_step all batches of a step have equal weights. With weighted_mean a batch counts by `weight`, the
        whole number of examples or tokens over which `loss` is a mean; by default this is the number of examples in the
        batch. Raises ConfigurationError if `weight` is given but all gradients count equally.
        """
        if self._worker is None:
            raise ConfigurationError("s.backward() belongs in a loop over s.batches(loader), which runs on workers only")
        self._worker.backward(loss, weight)

    def step(self, loss: torch.Tensor | float | None = None, metrics: Mapping[str, Any] | None = None) -> bool:
        """Apply the gradients of the batch's backward pass, and return True when the model has the new weights.

        `loss`, a mean over the batch, and `metrics`, sums over the batch, are recorded. With batches_per_step, the step is
        taken only after the last of several batches; after the other batches the result is False. Such a step requires
        `s.backward(loss)`, or `loss / batches_per_step` in the backward pass.
        """
        if self._worker is None:
            raise ConfigurationError("s.step() belongs in a loop over s.batches(loader), which runs on workers only")
        return self._worker.step(loss, metrics or {})

    def evaluated(
        self, *, loss: torch.Tensor | float, top1: float | None = None, examples: int = 0, seconds: float = 0.0, **metrics: Any
    ) -> bool:
        """Record the program's own evaluation of the present weights. Call this on a worker after `step`, before the next batch.

        `loss` and `metrics` are means over the evaluated examples; `top1` is a fraction. `examples` and `seconds` are
        recorded if given. evaluations.jsonl gets the same line as from `psnode evaluate`. Returns True if no earlier
        evaluation of the run, including those before a resume, is better. Evaluations are compared by top1 if given,
        otherwise by loss. The checkpoint of the best weights is kept. A `loss` that is not finite is recorded as null, and
        such an evaluation is never the best.
        """
        if self._worker is None:
            raise ConfigurationError("s.evaluated() belongs in a loop over s.batches(loader), which runs on workers only")
        means = metrics if top1 is None else {"top1": top1, **metrics}
        return self._worker.evaluated(loss, means, examples, seconds)

    def stop(self) -> None:
        """End the run early on all ranks, with exit code 0.

        If this is called before `step`, the run ends after the current step. If it is called after `step`, the run ends after
        the next step.
        """
        if self._worker is None:
            raise ConfigurationError("s.stop() belongs in a loop over s.batches(loader), which runs on workers only")
        self._worker.stop()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        code = 0 if error is None else exit_code_of(error)
        try:
            if error is None:
                self._require_end()
            elif isinstance(error, (RemoteFailureError, TransportError)):  # another rank failed or was lost
                self._tell(error)
            elif self._worker is not None and self._worker.over:  # the job has ended successfully: other ranks no longer listen
                with contextlib.suppress(PsnodeError, SystemExit):
                    self._finish()
            elif not self._over:
                self._tell(error)
        except SystemExit as left:
            code = exit_code_of(left)
            raise
        finally:
            self._close(code)

    def _begin(self, loader: Iterable[Batch], steps_per_epoch: int | None) -> None:
        """Agree with the other ranks on settings and data, and create the worker. On rank 0, serve until the end instead."""
        from psnode.jobs.sessions.session_data import batch_size, own_loop

        assert self._transport is not None
        self._config = config = replace(self._config, batch_size=batch_size(loader))
        workers = len(Layout.of(self.size, config.spares, config.servers).computing)
        task = own_loop(
            self._model, loader, steps_per_epoch, config, workers, self._constraint, self._groups, self._rate, self._optimizer
        )
        if config.resume and self._serves and task.steps_per_epoch is not None:
            _LOG.warning("the batches come from an iterable, which starts again: they differ from those of an unbroken run")

        def agree(agreed: Config) -> OwnLoop:
            if task.steps_per_epoch is None and config.batch_size != agreed.batch_size:
                raise ConfigurationError(
                    f"the loader has batch_size={config.batch_size} here and {agreed.batch_size} on rank 0: it must be the same"
                )
            return task

        if self._serves:
            from psnode.master import lead

            self._leads = True
            code = lead(self._transport, config, agree, hello())
            epoch = epoch_of(task, config, workers_at_end(config.directory))
            self._figures = RecordedFigures(config.directory, config, epoch)
            self._hand_out(code)
            return
        if self._is_alone:
            self._master = alone.MasterThread(self._far_end, config, task, _FINAL_TAG)
        from psnode.worker.handshake import join_in_any_role
        from psnode.worker.serving_rank import ServingRank
        from psnode.worker.stepwise import StepwiseWorker

        patience = 5 * config.pause_deadline + config.start_deadline
        found = join_in_any_role(self._link, patience, agree, contextlib.nullcontext())
        if isinstance(found, ServingRank):
            self._figures = found
            self._update_until_end(found)
        else:
            self._worker = self._figures = StepwiseWorker(found, holds=self._holds, beside=self._beside)

    def _update_until_end(self, server: ServingRank) -> None:
        """On a server: update a part of the weights until the end of the job, then load the final weights into the model."""
        from psnode.jobs.final_weights import take
        from psnode.tasks.model_tensors import give_own_memory

        try:
            server.train()
        finally:
            server.close()
        self._updates = server.version
        code = take(self._model, self._final, self._config.pause_deadline)
        give_own_memory(self._model)
        self._end_with(code)

    @property
    def _others(self) -> range:
        """Return all ranks except the master's."""
        return Layout.of(self.size, 0).readers

    def _hand_out(self, code: int) -> None:
        """Load the weights of the last checkpoint into the model of rank 0, and send them and the exit code to the other ranks.

        If the run was stopped, only its exit code is sent.
        """
        from psnode.jobs.final_weights import hand_out

        path = self._config.directory
        self._updates = int(json.loads((path / SUMMARY).read_bytes())["steps"])
        ranks, patience = self._others, self._config.pause_deadline
        hand_out(self._model, path, self._updates, code, self._final, ranks, patience)
        self._end_with(code)

    def _finish(self) -> None:
        """On a worker: leave the job at the end of the run, and load the final weights, which rank 0 sends."""
        if self._over:
            return
        from psnode.jobs.final_weights import take

        assert self._worker is not None
        self._worker.leave()
        self._updates = self._worker.version
        code = take(self._model, self._final, self._config.pause_deadline)
        self._worker.close()
        self._end_with(code)

    def _end_with(self, code: int) -> None:
        """Record that the run has ended. If `code` is not 0, because the run was stopped, exit the program with it."""
        self._over = True
        if code:
            raise SystemExit(code)

    def _require_end(self) -> None:
        """Finish the run when the program leaves the session's block.

        If the program leaves the block before the end of the run, the job and the program end with an error.
        """
        if self._worker is not None and self._worker.over:
            self._finish()
        elif self._loader is None:
            self._tell(
                ConfigurationError("the session has no loop over s.batches(loader): every rank needs it, and rank 0 serves in it")
            )
        elif not self._over:
            self._tell(
                ConfigurationError(
                    f"the session was left after step {self.version}, before the end of the run: let the loop end by itself, by "
                    "max_steps, epochs or s.stop()"
                )
            )

    def _tell(self, error: BaseException) -> None:
        """Inform the other ranks that this rank cannot continue because of `error`, and wait until they have been informed.

        Raises SystemExit if `error` is an error of psnode.
        """
        from psnode.worker import wait_for_end

        if self._is_alone and self._master is None:  # there is no other rank to inform
            if isinstance(error, PsnodeError):
                _LOG.error("error: %s", error)
                raise SystemExit(error.exit_code) from error
            return
        if self._serves:
            link = self._final if self._leads else self._link  # `lead` itself reports its errors
            link.fail(self._others, _brief(error))
        elif not isinstance(error, (RemoteFailureError, TransportError)):
            self._link.fail(MASTER, _brief(error))
            wait_for_end(self._link, self._config.pause_deadline)
        if isinstance(error, PsnodeError):
            if self._serves or isinstance(error, TransportError):
                _LOG.error("error: %s", error)
            raise SystemExit(error.exit_code or TransportError.exit_code) from error

    def _close(self, code: int) -> None:
        job_end.end(code or int(not self._over))  # sys.exit(0) within the loop is not a normal end
        if self._worker is not None:
            self._worker.close()
        elif self._leads:
            from psnode.tasks.model_tensors import give_own_memory

            give_own_memory(self._model)
        if self._master is not None:
            self._master.join(self._config.pause_deadline)
        if self._transport is not None:
            self._transport.close()
            if not getattr(self._transport, "clean", True):
                atexit.register(_leave, code)
        self._stack.close()


def _brief(error: BaseException) -> BaseException:
    """Return `error` as an error of one line for the other ranks, since this rank shows the traceback itself."""
    return error if isinstance(error, PsnodeError) else PsnodeError(in_one_line(error))


def _leave(code: int) -> None:
    """Exit after the last output of the program, with `code`. If it is 0 and the program ended with an exception, exit with 1."""
    logging.shutdown()
    exit_without_mpi(code or int(getattr(sys, "last_value", None) is not None))
