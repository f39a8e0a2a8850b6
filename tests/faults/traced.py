"""Runs a function in a process in which each system call that changes files can be made to fail, or to be the last call.

ptrace stops the process at each call, so that writes of native code are seen like Python's, and the function is unchanged. Linux
on x86-64 only: system call numbers and registers differ elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

AVAILABLE = sys.platform == "linux" and platform.machine() == "x86_64"
RAISED = 3  # the exit code of a function that raised OSError

_TRACEME, _PEEKUSER, _POKEUSER, _CONTINUE_TO_CALL, _SETOPTIONS = 0, 3, 6, 24, 0x4200
_OPTIONS = 0x1 | 0x100000  # mark stops at system calls; kill the traced process when its tracer ends
_AT_CALL = signal.SIGTRAP | 0x80
_NUMBER, _RESULT, _ARGUMENTS = 15 * 8, 10 * 8, (14 * 8, 13 * 8, 12 * 8, 7 * 8)  # orig_rax, rax; rdi, rsi, rdx, r10
_AT_FDCWD = 0xFFFFFF9C
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

# number: name, and the kind of argument that names the changed file: a descriptor, a path, or a directory's descriptor and a path
_CALLS = {
    1: ("write", "fd"), 18: ("pwrite64", "fd"), 20: ("writev", "fd"), 40: ("sendfile", "fd"), 74: ("fsync", "fd"),
    75: ("fdatasync", "fd"), 77: ("ftruncate", "fd"), 285: ("fallocate", "fd"), 326: ("copy_file_range", "fd"),
    2: ("open", "path"), 82: ("rename", "path"), 83: ("mkdir", "path"), 84: ("rmdir", "path"), 87: ("unlink", "path"),
    257: ("openat", "at"), 258: ("mkdirat", "at"), 263: ("unlinkat", "at"), 264: ("renameat", "at"), 316: ("renameat2", "at"),
}  # fmt: skip

_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


@dataclass
class Trace:
    """A traced process: the calls begun, as (name, path), the exit code, and the inodes of files that were written but not
    synced since.
    """

    pid: int
    calls: list[tuple[str, str]] = field(default_factory=list)
    code: int = 0  # as in subprocess: the exit code, or the negated signal
    volatile: set[int] = field(default_factory=set)


def traced(body: Callable[[], object], folder: Path, *, last: int = 0, fails: int = 0, error: int = 0) -> Trace:
    """Run `body` in a fork of this process. Calls that change files below `folder` are counted from 1.

    At call `last` the process gets SIGKILL before the call is carried out. Call `fails` is not carried out, and returns `error`
    (an errno).
    """
    pid = os.fork()
    if pid == 0:
        _be_traced(body)
    os.waitpid(pid, 0)
    _libc.ptrace(_SETOPTIONS, pid, None, _OPTIONS)
    trace, entering, failing = Trace(pid), True, False
    while True:
        _libc.ptrace(_CONTINUE_TO_CALL, pid, None, None)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            trace.code = os.waitstatus_to_exitcode(status)
            return trace
        if os.WSTOPSIG(status) != _AT_CALL:
            continue
        if entering and (call := _call(pid, folder)):
            trace.calls.append(call)
            if len(trace.calls) == last:
                os.kill(pid, signal.SIGKILL)
            failing = len(trace.calls) == fails
            if failing:
                _libc.ptrace(_POKEUSER, pid, _NUMBER, ctypes.c_void_p(-1))
            elif len(trace.calls) != last:
                _note(trace, pid, call[0])
        elif not entering and failing:
            _libc.ptrace(_POKEUSER, pid, _RESULT, ctypes.c_void_p(-error))
            failing = False
        entering = not entering


def _be_traced(body: Callable[[], object]) -> None:
    code = 1
    try:
        _libc.ptrace(_TRACEME, 0, None, None)
        os.kill(os.getpid(), signal.SIGSTOP)
        body()
        code = 0
    except OSError:
        code = RAISED
    finally:
        os._exit(code)


def _call(pid: int, folder: Path) -> tuple[str, str] | None:
    """Return the call that `pid` is about to make, as (name, path), if it changes a file in `folder`; else None."""
    name, kind = _CALLS.get(_libc.ptrace(_PEEKUSER, pid, _NUMBER, None), ("", ""))
    first, second, third, _ = (_libc.ptrace(_PEEKUSER, pid, place, None) & 0xFFFFFFFFFFFFFFFF for place in _ARGUMENTS)
    if not name or (name == "open" and not second & _WRITING) or (name == "openat" and not third & _WRITING):
        return None
    if kind == "fd":
        path = _opened(pid, first)
    elif kind == "path":
        path = _text(pid, first)
    else:
        within = "" if first & 0xFFFFFFFF == _AT_FDCWD else _opened(pid, first)
        path = os.path.join(within, _text(pid, second))
    return (name, os.path.relpath(path, folder)) if path.startswith(f"{folder}{os.sep}") else None


def _opened(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def _text(pid: int, address: int) -> str:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        return os.fsdecode(memory.read(4096).partition(b"\0")[0])


def _note(trace: Trace, pid: int, name: str) -> None:
    """Update the set of files whose contents a power failure would lose."""
    if name in ("write", "pwrite64", "writev", "ftruncate", "fsync"):
        inode = os.stat(f"/proc/{pid}/fd/{_libc.ptrace(_PEEKUSER, pid, _ARGUMENTS[0], None)}").st_ino
        (trace.volatile.discard if name == "fsync" else trace.volatile.add)(inode)
