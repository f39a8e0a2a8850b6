"""The user's own code: import of modules by file path, and the classes of codecs and loggers that such files define."""

from __future__ import annotations

import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from psnode.codecs.spec import CODEC_FILE
from psnode.errors import CodecSpecError, ConfigurationError, in_one_line

TASK_MODULES = "psnode_task_"  # prefix of the names of modules imported from a task's file


_EXECUTING = threading.RLock()
_STATE = "__psnode_file__"  # variable in an imported module: path, modification time and size of its file


class ClassInFile(NamedTuple):
    """The parts of `FILE:NAME[:k=v,...][+STAGE]`; FILE is made an absolute path, and `rest` is the text after NAME."""

    file: Path
    name: str
    rest: str


def import_file(path: Path, kind: str) -> ModuleType:
    """Return the module in a file, after importing it.

    An unchanged file is executed only once, so that the workers of one process share its classes. The file's directory is added
    to the end of sys.path, so that the module can import its neighbours. `kind` is "task", "codec" or "logger", and is used in
    messages. Raises ConfigurationError if the file is missing or its code raises an exception.
    """
    if not path.is_file():
        raise ConfigurationError(f"{kind} file {path} does not exist: check the path, or name a module as package.module")
    extend_path(path.resolve().parent)
    spec = importlib.util.spec_from_file_location(f"psnode_{kind}_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{kind} file {path} is not a Python file: its name must end in .py")
    state = (path.resolve(), path.stat().st_mtime_ns, path.stat().st_size)
    with _EXECUTING:
        known = sys.modules.get(spec.name)
        if known is not None and vars(known).get(_STATE) == state:
            return known
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module  # dataclasses and type hints look up their module in sys.modules
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ConfigurationError(f"{kind} file {path} cannot be imported: {in_one_line(error)}") from error
        vars(module)[_STATE] = state
    return module


def extend_path(directory: Path) -> None:
    """Add `directory` to the end of sys.path, so that its modules can be imported. All other directories are searched first."""
    if str(directory) not in sys.path:
        sys.path.append(str(directory))


def locate_codec(spec: str) -> str:
    """Return `spec` with the path of its file, if any, made absolute, so that it is valid in any directory."""
    found = class_in(spec)
    return spec if found is None else f"{found.file}:{found.name}{found.rest}"


def class_in(spec: str) -> ClassInFile | None:
    """Return the parts of `spec` if it begins with FILE:NAME, else None. Raises CodecSpecError."""
    path, separator, rest = spec.partition(CODEC_FILE)
    if not separator:
        if spec.endswith(".py"):
            raise CodecSpecError(f"codec {spec!r} names no class: psnode codecs {spec} lists those of the file, for {spec}:NAME")
        return None
    name = rest.partition(":")[0].partition("+")[0].strip()
    if not name.isidentifier():
        raise CodecSpecError(f"codec {spec!r} must name a class: path/to/file.py:NAME, then :parameter=value")
    try:
        file = Path(path + ".py").expanduser().absolute()
    except RuntimeError as error:  # ~NAME, where NAME is not the name of a user
        raise CodecSpecError(f"codec {spec!r}: {in_one_line(error)}") from None
    return ClassInFile(file, name, rest[len(name) :])


def classes_in(file: Path, kind: str) -> list[type]:
    """Execute a file and return the classes that it defines itself, sorted by name. Raises the errors of `import_file`."""
    module = import_file(file, kind)
    found = [each for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__]
    return sorted(set(found), key=lambda each: each.__name__)


def import_class(file: Path, name: str, kind: str) -> Any:
    """Execute a file and return its class `name`.

    Raises ConfigurationError in the cases of `import_file`, and if the file has no class of that name.
    """
    module = import_file(file, kind)
    found = getattr(module, name, None)
    if found is None:
        own = ", ".join(each.__name__ for each in classes_in(file, kind))
        raise ConfigurationError(f"{kind} file {file} has no class {name!r}: it has {own or 'none'}")
    return found
