"""`python -m studies.widths`: distinct targets, figures for each, and the message if a process ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.bench.codecs import SPEEDS
from psnode.codecs.kernels.llvm.runtime_values import processor
from studies import widths
from studies.harness import main


def compare(*arguments: str) -> int:
    return main(widths.STUDY, ["--size", "2048", "--seconds", "0", "--copies", "0", *arguments])


@pytest.mark.parametrize(
    ("processor", "features", "names"),
    [
        ("znver4", "+avx2,+avx512f,+avx512vl,+fma,-avx512er", ["host", "256", "AVX2", "Intel", "baseline"]),
        ("znver5", "+avx2,+avx512f,+fma", ["host", "256", "AVX2", "AMD", "baseline"]),
        ("icelake-server", "+avx2,+avx512f,+fma", ["host", "256", "AVX2", "512", "AMD", "baseline"]),
        ("znver2", "+avx2,+fma,-avx512f", ["host", "Intel", "baseline"]),
        ("neoverse-n1", "+neon", ["host", "baseline"]),
    ],
)
def test_targets_are_those_that_the_processor_runs(processor: str, features: str, names: list[str]) -> None:
    found = widths.targets(processor, features)
    assert sorted(found) == sorted(names) and found["host"] == {}
    if "AVX2" in found:
        words = found["AVX2"]["NUMBA_CPU_FEATURES"].split(",")
        assert {"+avx2", "+fma"} <= set(words) and not [word for word in words if word.startswith("+avx512")]
        assert found["256"]["NUMBA_CPU_FEATURES"] == features + ",+prefer-256-bit"


@pytest.mark.long
def test_every_codec_has_figures_for_every_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = widths.targets(*processor())
    monkeypatch.setattr(widths, "targets", lambda *_: {name: found[name] for name in ("host", "baseline")})
    assert compare("--codec", "sign", "--json", str(tmp_path / "widths.json")) == 0
    text = capsys.readouterr().out
    result = json.loads((tmp_path / "widths.json").read_text())
    assert set(result["targets"]) == {"host", "baseline"}
    assert result["read"].keys() == result["targets"].keys()
    assert [(row["spec"], row["action"]) for row in result["rows"]] == [("sign", action) for action in SPEEDS]
    for row in result["rows"]:
        assert row["gbps"].keys() == result["targets"].keys()
        assert all(gbps > 0 for gbps in row["gbps"].values())
        host = row["gbps"]["host"]
        assert f"| `sign` | {row['action']} | {host:.2f} | {host / result['read']['host']:.2f} |" in text


def test_what_cannot_be_compared_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    example = Path(__file__).parents[2] / "examples" / "codec.py"
    assert compare("--codec", f"{example}:Logarithmic") == 2
    assert "psnode's own codecs alone: leave out logarithmic" in capsys.readouterr().err


def test_a_process_that_ends_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(widths, "targets", lambda *_: {"host": {"NUMBA_CPU_NAME": "none such"}, "baseline": {}})
    monkeypatch.setattr("sys.executable", "/bin/false")
    assert compare("--codec", "sign") == 1
    assert "the process of target host ended with 1" in capsys.readouterr().err


def test_targets_that_write_other_bytes_end_the_comparison(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = iter(["a", "b"])
    monkeypatch.setattr(widths._Process, "_answer", lambda self: {"sign": next(digests)})
    monkeypatch.setattr(widths, "targets", lambda *_: {"host": {}, "baseline": {}})
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert compare("--codec", "sign") == 1
    assert "sign writes 2 payloads for targets host, baseline" in capsys.readouterr().err
