"""Sources of a configuration, in ascending order of precedence: a TOML file, PSNODE_* variables and flags.

An unknown name in any source is an error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from psnode.config import Config, settings
from psnode.config.cores import asked_threads
from psnode.config.declaration import nearest, read_toml
from psnode.config.files import read_json
from psnode.config.names import locate_logger, locate_task
from psnode.config.plain_json import to_json
from psnode.config.train_settings import AUTO, BY_RULE, BY_TRIAL, EARLIER_DEFAULTS, UNDECIDED
from psnode.errors import ConfigurationError

PREFIX = "PSNODE_"
FILE_VARIABLE = "PSNODE_CONFIG"
RECORD = "config.json"  # file in a run's directory; its member `config` is Config.to_dict()
# variables of the project's own scripts and launcher, which are not settings of a run
_OTHER_VARIABLES = frozenset(
    {FILE_VARIABLE, "PSNODE_VENV", "PSNODE_PYTHON", "PSNODE_MPI", "PSNODE_CONSTRAINTS", "PSNODE_JOB_END"}
)
_OF_ONE_START = frozenset({"resume", "debug", "quiet", "trust_run", "stop_after", "allow_unlike_versions"})
# settings that a resumed run does not take from the run that it continues
_NOT_INHERITED = frozenset({"train_dir", "local", *_OF_ONE_START})


def load(flags: Mapping[str, Any], environment: Mapping[str, str], file: Path | None = None) -> Config:
    """Return the validated configuration from `flags`, the PSNODE_* variables in `environment`, and a file.

    `flags` has values by setting name. `file` replaces the file that PSNODE_CONFIG names. If `resume` is True, settings that
    are not given are taken from the record of the run.
    """
    if file is None and environment.get(FILE_VARIABLE):
        file = Path(environment[FILE_VARIABLE])
    stated = {**from_environment(environment), **flags}
    written = from_file(file) if file else {}
    if file and file.suffix == ".json":
        check_trust(file.parent, written, stated, trusted=bool(stated.get("trust_run")))
    given = {**written, **stated}
    values = {**_implied(given), **given}
    if values.get("resume") and values.get("scheme", AUTO) == AUTO:
        values.pop("scheme", None)  # use the choice that was made when the run began
        values |= _earlier_directory(values)
    config = Config(**values)
    if config.resume:
        recorded = _recorded(config.directory)
        if values.get("topology") == UNDECIDED and recorded:
            values["topology"] = recorded["topology"]  # a resumed run keeps what was decided when it began
        check_trust(config.directory, recorded, values, trusted=config.trust_run)
        directory = config.directory  # its name may contain another scheme than the record, if a plan has chosen the run's scheme
        config = Config(**{**_meant(recorded, values), **values})
        config = config if config.directory == directory else replace(config, train_dir=directory)
        if "threads" not in values and (asked := asked_threads(environment)) is not None:
            config = replace(config, threads=asked)
    config.validate(given)
    if config.plan not in (BY_RULE, BY_TRIAL) and "scheme" in stated and not config.resume:
        raise ConfigurationError("--plan FILE has the scheme of its plan: leave --scheme out")
    # paths in the record must be valid for an evaluator that was started in another directory
    if config.data_dir:
        config = replace(config, data_dir=config.data_dir.expanduser().absolute())
    if config.plan not in (BY_RULE, BY_TRIAL):
        config = replace(config, plan=str(Path(config.plan).expanduser().absolute()))
    if config.init_from:
        config = replace(config, init_from=config.init_from.expanduser().absolute())
    if config.codec:
        from psnode.codecs.registry.python_files import locate_codec  # imports numpy, so only a launch with a codec does this

        config = replace(config, codec=locate_codec(config.codec))
    if config.log_to:
        config = replace(config, log_to=tuple(map(locate_logger, config.log_to)))
    return replace(config, task=locate_task(config.task)) if config.task else config


def _earlier_directory(values: Mapping[str, Any]) -> dict[str, Path]:
    """Return the default directory of this run under an earlier default scheme, as the setting `train_dir`.

    The default directory's name contains the scheme, so a run that began under another default scheme has another directory.
    The result is empty if `train_dir` is given or if the present default directory holds a run. It is also empty if no earlier
    default directory holds a run, or if several do.
    """
    now = Config(**values).directory
    if values.get("train_dir") is not None or (now / RECORD).exists():
        return {}
    earlier = [Config(**{**values, "scheme": scheme}).directory for scheme in EARLIER_DEFAULTS]
    found = [directory for directory in earlier if (directory / RECORD).exists()]
    return {"train_dir": found[0]} if len(found) == 1 else {}


def check_trust(
    directory: Path, recorded: Mapping[str, Any], given: Container[str], *, trusted: bool, used: Collection[str] = ()
) -> None:
    """Refuse to execute code that only the record of a run names, because the author of the directory has chosen that code.

    `recorded` has the settings of the run in `directory`. `given` has the names of the settings that the user set, which are
    not taken from the record. `used` has the names of the settings whose code will be executed; if it is empty, all settings
    count. Raises ConfigurationError, which names the code, unless the run is `trusted`.
    """
    for name, setting in settings().items():
        if used and name not in used:
            continue
        value = recorded.get(name)
        tells = setting.rules.names_code
        if tells is not None and tells(value) and name not in given and not trusted:
            raise ConfigurationError(
                f"the run in {directory} would execute {value}: name it again with {setting.flag}, "
                "or add --trust-run if you trust whoever wrote that directory"
            )


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings in PSNODE_* variables; lists are separated by commas."""
    known = {setting.variable: setting for setting in settings().values()}
    found = {}
    for variable, text in environment.items():
        if variable in known:
            found[known[variable].name] = known[variable].parse(text, variable)
        elif variable.startswith(PREFIX) and variable not in _OTHER_VARIABLES:
            raise ConfigurationError(f"unknown variable {variable}{nearest(variable, known) or ': unset it'}")
    return found


def to_toml(config: Config) -> str:
    """Return the settings of `config` as TOML, one per line, which `from_file` can read."""
    rows = {name.replace("_", "-"): value for name, value in config.stated().items() if name not in _OF_ONE_START}
    return "".join(f"{key} = {to_json(value, ensure_ascii=False)}\n" for key, value in rows.items())


def from_file(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML file or in a run's config.json.

    For a config.json these are the settings of the run's latest start, except its directory, --local, and settings that apply
    to a single start.
    """
    if path.suffix != ".json":
        return read_toml(path, settings())
    try:
        config = Config.from_dict(json.loads(path.read_text(encoding="utf-8"))["config"])
    except OSError as error:
        raise ConfigurationError(f"--config {path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ConfigurationError(f"--config {path} is not {RECORD} of a run: {type(error).__name__}: {error}") from error
    return {name: value for name, value in config.stated().items() if name not in _NOT_INHERITED}


def _implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that other settings imply. For example, --lr-shrinkage alone implies --lr-schedule shrink."""
    found: dict[str, Any] = {}
    for name in given:
        rules = settings()[name].rules
        if rules.implies and rules.needs and rules.needs[0] not in given:
            found.setdefault(*rules.needs)
    return found


def _meant(recorded: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings without those that lose their meaning because `values`, the new settings, change the plan."""
    gone = set()
    for name, setting in settings().items():
        needs = setting.rules.needs
        if setting.rules.replans and needs is not None and str(values.get(needs[0], needs[1])).casefold() != needs[1]:
            gone.add(name)
    if values.get("topology", recorded.get("topology")) != recorded.get("topology"):
        gone.add("group_bytes")  # the recorded size may have been chosen for the recorded topology
    return {name: value for name, value in recorded.items() if name not in gone}


def _recorded(directory: Path) -> dict[str, Any]:
    """Return the settings that are inherited from the run in `directory`; empty if it has no readable record."""
    try:
        fields = Config.from_dict(read_json(directory / RECORD)["config"]).to_dict()
    except (OSError, ValueError, LookupError, TypeError, OverflowError, ConfigurationError):
        return {}  # the resuming run reads the record again and reports the fault
    return {name: value for name, value in fields.items() if name not in _NOT_INHERITED}
