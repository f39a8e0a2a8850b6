"""The master of a session whose program was started without MPI: a thread with a copy of the model.

The program itself is the only worker.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from psnode.errors import PsnodeError, in_one_line
from psnode.jobs.final_weights import hand_out
from psnode.jobs.job import hello
from psnode.protocol.channel import FrameChannel
from psnode.records.metrics import SUMMARY
from psnode.tasks.own_loop import OwnLoop

if TYPE_CHECKING:
    from psnode.config import Config
    from psnode.transport.base import Transport
    from psnode.transport.loopback import LoopbackTransport

_LOG = logging.getLogger(__name__)

WORKER = 1  # rank of the program's own process


def ends() -> tuple[LoopbackTransport, LoopbackTransport]:
    """Return the two connected transports of a master and its only worker."""
    from psnode.transport.loopback import loopback_group

    master, worker = loopback_group(2)
    return master, worker


class MasterThread:
    """The thread of a master that trains a copy of the model of `task`, and sends the final weights to the worker."""

    def __init__(self, end: LoopbackTransport, config: Config, task: OwnLoop, final_tag: int) -> None:
        groups = [{**group, "params": _listed(group)} for group in task.parameter_groups(task.model())]
        model, groups = copy.deepcopy((task.model(), groups))
        self._end, self._config, self._model = end, config, model
        self._task = task.of(model, groups)
        self._final = FrameChannel(end, final_tag, watched={WORKER})
        self._thread = threading.Thread(target=self._run, name="psnode-master", daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        """Wait until the master has ended, for at most `seconds`."""
        self._thread.join(seconds)

    def _run(self) -> None:
        from psnode.master import lead

        end: Transport = self._end
        try:
            code = lead(end, self._config, lambda agreed: self._task, hello())
            path = self._config.directory
            steps = int(json.loads((path / SUMMARY).read_bytes())["steps"])
            hand_out(self._model, path, steps, code, self._final, [WORKER], self._config.pause_deadline)
        except PsnodeError as error:
            _LOG.error("error: %s", error)
            self._final.fail([WORKER], error)
        except (Exception, SystemExit) as error:  # for example, an error in a function of the program that the master calls
            _LOG.exception("the master cannot continue")
            self._final.fail([WORKER], PsnodeError(in_one_line(error)))
        finally:
            self._end.close()


def _listed(group: Mapping[str, Any]) -> Any:
    """Return the parameters of a group. A generator, such as model.parameters(), becomes a list."""
    parameters = group.get("params", [])
    return list(parameters) if hasattr(parameters, "__next__") else parameters
