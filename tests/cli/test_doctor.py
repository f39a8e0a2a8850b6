"""Findings of `psnode doctor`: codecs that fail, cores, shared memory, and the last output of failing programs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.cli import doctor, doctor_codecs, doctor_hosts
from psnode.codecs import Codec, register
from psnode.codecs.traits import Traits
from psnode.config import cores
from psnode.config.cores import usable_cores
from psnode.config.schemes import SCHEMES
from psnode.config.train_settings import DEFAULT_SCHEME
from psnode.jobs.hosts import agent
from psnode.jobs.hosts.hostfile import Host
from psnode.jobs.hosts.probes import probe
from psnode.jobs.hosts.problems import Problem
from psnode.jobs.hosts.survey import Answer
from psnode.jobs.shared_memory import SharedMemory

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, repr=False)
class _Plain(Codec):
    """A codec that sends float32 unchanged; `spoil` changes the decoded values."""

    id = "plain"
    number = 200
    traits = Traits()

    def _max_body(self, shape: tuple[int, ...]) -> int:
        return 4 * int(np.prod(shape))

    def _encode(self, source: Any, key: Any, body: Any, sink: Any) -> int:
        values = source.array().reshape(-1)
        body[: values.nbytes].view(np.float32)[:] = values
        return int(values.nbytes)

    def _decode(self, body: Any, out: Any) -> None:
        out.reshape(-1)[:] = self.spoil(np.frombuffer(body, np.float32))

    @staticmethod
    def spoil(values: Any) -> Any:
        return values


class _Adding(_Plain):
    def _decode_add(self, body: Any, out: Any, weight: Any) -> None:
        out += np.float32(2) * weight * np.frombuffer(body, np.float32).reshape(out.shape)


def _spoiling(spoil: Callable[[Any], Any]) -> type[_Plain]:
    return type("Spoiling", (_Plain,), {"spoil": staticmethod(spoil)})


def _raising(values: Any) -> Any:
    raise NotImplementedError("no such\ninstruction")


@pytest.mark.parametrize(
    ("cls", "fault"),
    [
        (_Plain, ""),
        (_spoiling(_raising), "NotImplementedError: no such instruction"),
        (_spoiling(lambda values: values * np.nan), "not finite"),
        (_spoiling(lambda values: -values), "unrelated to"),
        (_spoiling(np.zeros_like), "unrelated to"),
        (_Adding, "adds values that differ"),
    ],
)
def test_a_codec_that_does_not_do_its_work_is_found_out(cls: type[_Plain], fault: str) -> None:
    register(cls)
    found = doctor_codecs.fault_of("plain")
    assert fault in found
    assert bool(found) == bool(fault)
    assert "\n" not in found


def test_codecs_of_all_schemes_are_tried_and_do_their_work() -> None:
    specs = {spec for scheme in SCHEMES.values() for spec in (scheme.codec, scheme.downlink)} - {"dense"}
    assert {spec: fault for spec in specs if (fault := doctor_codecs.fault_of(spec))} == {}


def test_a_codec_that_ends_its_process_is_named_with_a_remedy() -> None:
    program = "import os; from psnode.codecs.polar import Polar; Polar._encode = lambda *words: os._exit(7); "
    found = probe([sys.executable, "-c", program + doctor_codecs.program(every=False)])
    good, detail, remedy = doctor_codecs.verdict(found)
    assert not good
    assert detail == f"{SCHEMES[DEFAULT_SCHEME].codec}: ends the process that uses it"
    assert "pip install -c constraints.txt" in remedy


def test_where_no_kernel_is_kept_the_default_scheme_alone_is_tried() -> None:
    line = [sys.executable, "-c", doctor_codecs.program(every=False)]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["schemes"] == [DEFAULT_SCHEME]
    assert doctor_codecs.verdict(found)[0]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("raise ValueError('no\\nsuch')", "such"),
        (
            "print('-' * 70, 'It could\\nnot', 'Node: a', '-' * 70, sep='\\n', file=sys.stderr)",
            "It could not Node: a",
        ),
        ("print(json.dumps({'now': 1}), flush=True); import time; time.sleep(600)", "did not end within 2 s"),
        ("sys.exit(3)", "exit code 3"),
    ],
)
def test_the_last_words_of_a_program_say_something(program: str, words: str) -> None:
    found = probe([sys.executable, "-c", f"import json, sys\n{program}"], seconds=2 if "sleep" in program else 60)
    assert words in found["error"]
    assert "---" not in found["error"]


@pytest.mark.parametrize(("end", "code"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(7)", 7)])
def test_a_program_that_fails_after_its_words_has_its_end_told(end: str, code: int) -> None:
    found = probe([sys.executable, "-c", f'import os\nprint(\'{{"version": "2"}}\', flush=True)\n{end}'])
    assert found == {"version": "2", "ended": code}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({"vision": None}, None),
        ({"vision": "operator nms is missing"}, "operator nms is missing"),
        ({"ended": -11}, "by SIGSEGV"),
        ({"ended": 3}, "by exit code 3"),
    ],
)
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is None, reason="no torchvision")
def test_a_torchvision_that_does_not_fit_torch_is_told_with_both_versions(found: dict[str, Any], told: str | None) -> None:
    findings = list(doctor._torchvision({"version": "2.9.9", **found}))
    assert len(findings) == (told is not None)
    for finding in findings:
        assert "beside torch 2.9.9: " in finding.detail and str(told) in finding.detail
        assert "torch torchvision" in finding.remedy


def test_a_probe_finds_the_psnode_of_this_process() -> None:
    """Check that a psnode that is not installed is found: the option -S hides installed packages from the probe."""
    program = "import json, importlib.util as u; print(json.dumps({'at': u.find_spec('psnode').origin}))"
    assert probe([sys.executable, "-S", "-c", program]) == {"at": str(ROOT / "psnode" / "__init__.py")}


def test_a_quota_of_cores_is_told_here_and_by_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a quota of 1.5 cores counts as 1 core, and that the doctor names it. tests/config/test_cores.py tests how
    quotas are read, which is not possible everywhere.
    """
    assert agent._cores() == usable_cores()
    for module in (cores, doctor):
        monkeypatch.setattr(module, "quota", lambda *words: 1.5)
    assert agent._cores() == 1
    assert doctor._cores().detail.startswith("1 of ")
    assert "by a quota of 1.5" in doctor._cores().detail


@pytest.mark.parametrize(("free", "state"), [(2000, "ok"), (1, "optional")])
def test_little_shared_memory_is_told_with_what_is_needed(free: int, state: str) -> None:
    ranks = usable_cores() + 1
    found = doctor._shared_memory(SharedMemory(free << 24, free << 24))
    assert found.state == state
    assert f"{ranks} ranks take {ranks * 16.777216:.3g}"[:18] in found.detail
    assert ("--shm-size" in found.remedy) == (state != "ok")


def finding(what: str, state: Any) -> doctor.Finding:
    return doctor.Finding(what, state, "as found", "" if state == "ok" else "mend it")


@pytest.mark.parametrize(
    ("states", "last"),
    [
        ({"Python": "ok", "MPI": "ok"}, "All is well: a run can work here."),
        (
            {"Python": "ok", "cupy": "optional", "optuna": "optional"},
            'All is well: a run can work here. Optional, with a "to do" above: cupy, optuna.',
        ),
        ({"Python": "ok", "MPI": "missing", "cupy": "optional"}, "A run cannot work here. Mend MPI first."),
        (
            {"numpy": "missing", "MPI": "missing", "torch": "missing"},
            "A run cannot work here. Mend numpy first; then look at MPI, torch.",
        ),
    ],
)
def test_the_last_line_is_the_verdict(
    states: dict[str, Any], last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    doctor._show([finding(what, state) for what, state in states.items()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == last
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("problems", "last"),
    [
        ([], "All is well: no problem would stop a job on 2 hosts."),
        ([("b", False)], "All is well: no problem would stop a job on 2 hosts; 1 note above."),
        (
            [("a", False), ("b", True), ("b", True), ("c", True)],
            "A job cannot work on these hosts. Mend b first; then look at c.",
        ),
    ],
)
def test_the_last_line_about_hosts_is_the_verdict(
    problems: list[tuple[str, bool]], last: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    facts = {"python": "3.11.7", "torch": "2.13.0", "psnode": "0.2.0", "mpi": "", "cores": 2, "free": 1e9}
    answers = [Answer(Host(name, 1), facts=facts, clock=0.0, up={}, down={}) for name in ("a", "b")]
    doctor_hosts._show(facts, answers, [Problem(host, stops, "is slow", "mend it") for host, stops in problems])
    assert capsys.readouterr().out.splitlines()[-1] == last


def test_nothing_is_cut_at_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path, remedy = "/" + "/".join(f"part{k}" for k in range(30)), "set NUMBA_CACHE_DIR to a directory that you can write"
    doctor._show([doctor.Finding("kernel cache", "missing", path, remedy), doctor.Finding("MPI fault tolerance", "ok", "ULFM")])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert path in "".join(out.split()) and remedy.replace(" ", "") in "".join(out.split())
    assert "…" not in out


def test_hosts_are_not_cut_at_eighty_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    facts = {
        "python": "3.11.7",
        "torch": "2.13.0+cu130",
        "psnode": "0.2.0",
        "mpi": "Open MPI v5.0.11",
        "cores": 128,
        "free": 1e12,
    }
    link = {"mbit": 9412.0, "milliseconds": 0.12}
    names = [f"node{k}.cluster.example.org" for k in range(2)]
    doctor_hosts._show(facts, [Answer(Host(name, 1), facts=facts, clock=0.0123, up=link, down=link) for name in names], [])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80 and "…" not in out
    for words in ("3.11.7", "1000.0 GB", "+12 ms", "9412 / 9412"):
        assert words in out
