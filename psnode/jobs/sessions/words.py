"""Messages of a session in the words of a program: the argument `train_dir=` replaces the flag `--train-dir`, for example."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config import settings
from psnode.errors import ConfigurationError
from psnode.records.directory import holds_run

AUTO = "auto"
_RESUME = "PSNODE_RESUME"
# A match is either a command line of psnode up to the end of its clause, whose flags stay, or a flag and the space after it.
_WORDS = re.compile(
    r"(?P<command>\bpsnode [a-z][^,;:)]*)|(?<![\w-])--(?P<no>no-)?(?P<name>[a-z][a-z0-9-]*)"
    r"(?:(?<=--scheme) (?!must )(?=\w)| (?=[^\s,;)]*[\d/:]))?"
)


def of_program(text: str) -> str:
    """Return a message in which arguments of a program replace flags of the command line.

    `--train-dir` becomes `train_dir=`, and `--resume` becomes `resume=True (PSNODE_RESUME=true)`. Flags in a psnode command
    within the text are not changed, nor are flags that are not settings.
    """

    def word(found: re.Match[str]) -> str:
        name = (found["name"] or "").replace("-", "_")
        if found["command"] or name not in settings():
            return found[0]
        if name == "resume":
            return f"resume=True ({_RESUME}=true)"
        return f"{name}={not found['no']}" if settings()[name].kind is bool else f"{name}="

    return _WORDS.sub(word, text)


def in_words_of_program(error: ConfigurationError) -> ConfigurationError:
    """Return a copy of `error` with its message changed by `of_program`."""
    return ConfigurationError(of_program(str(error)))


def resumed_automatically(given: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the settings and the environment of a session, with True or False in place of `resume="auto"` or PSNODE_RESUME=auto.

    The value is True if the directory `given["train_dir"]` contains a run. In this case the settings of initial weights
    (init_from, new_head) are left out, since they have no effect on a resumed run.
    """
    found, variables = dict(given), dict(environment)
    if variables.get(_RESUME, "").casefold() == AUTO:
        del variables[_RESUME]
        found.setdefault("resume", AUTO)
    if found.get("resume") == AUTO:
        path = Path(found["train_dir"])
        found["resume"] = path.is_dir() and holds_run(path, os.listdir(path))
        if found["resume"]:
            found = {name: value for name, value in found.items() if name not in ("init_from", "new_head")}
    return found, variables


def refuse_torchrun(program: str) -> None:
    """Exit with ConfigurationError's code if torchrun started this process, because torchrun starts no MPI ranks.

    Only the process with RANK=0 logs the reason.
    """
    import logging

    from psnode.config.logs import shown

    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return
    if os.environ.get("RANK", "0") == "0":
        with shown():
            logging.getLogger(__name__).error(
                "error: torchrun starts no MPI ranks, which a session needs: psnode launch -n 2 -- %s, mpirun -n 3 python %s, or "
                "python %s for one worker in one process",
                program, program, program,
            )  # fmt: skip
    raise SystemExit(ConfigurationError.exit_code)
