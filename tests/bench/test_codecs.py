"""`psnode bench codecs` and `bench record` on tiny inputs: their figures agree with values that the tests compute in another
way.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from torch.nn import functional

from psnode.bench import inputs, torch_codecs
from psnode.bench.codec_tables import show
from psnode.bench.codecs import KEY, Memory, _row, run, settings
from psnode.bench.codecs import main as bench_codecs
from psnode.bench.record import record
from psnode.bench.yardsticks.rate_distortion import curve
from psnode.bench.yardsticks.rotation import Rotation
from psnode.cli import app
from psnode.codecs import available, get_codec
from psnode.codecs.base import Floats
from psnode.config import Config
from psnode.errors import ConfigurationError

SIZE = 8192
COPIES = 3 * 4 * SIZE
SPECS = ["identity", "qsgd", "dithered+ans", "topk", "svd"]


@pytest.fixture(scope="module")
def gradient(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gradient") / "lenet.safetensors"
    record(Config(network="LeNet", dataset="digits", batch_size=8, seed=3), 2, path)
    return path


def test_the_recorded_gradient_is_that_of_sgd_written_by_hand(gradient: Path) -> None:
    from psnode.tasks.classification import Classification

    task = Classification("LeNet", "digits", seed=3)
    torch.manual_seed(3)
    model, data, rng = task.model(), task.train_data(), np.random.default_rng(3)
    weights, speed = dict(model.named_parameters()), {}
    for step in range(3):
        images, labels = data.batch(rng.choice(len(data), 8, replace=False), rng)
        found = torch.autograd.grad(functional.cross_entropy(model(images), labels), list(weights.values()))
        for (name, weight), each in zip(weights.items(), found, strict=True):
            speed[name] = 0.9 * speed[name] + each if step else each
            if step < 2:
                weight.data -= 0.01 * speed[name]
    saved = load_file(gradient)
    assert list(weights) == sorted(weights, key=list(weights).index)
    assert set(saved) == set(weights)
    for name, each in zip(weights, found, strict=True):
        np.testing.assert_allclose(saved[name], each.numpy(), rtol=1e-4, atol=1e-6)


def test_every_codec_is_measured_unless_some_are_named() -> None:
    assert {spec.partition(":")[0].partition("+")[0] for spec in settings([])} == set(available())
    assert settings(["topk"]) == ["topk"]
    for spec in settings([]):
        get_codec(spec)


def test_bits_and_errors_are_those_of_the_payloads(gradient: Path) -> None:
    result = run(SPECS, SIZE, gradient, seconds=0.0, copies=COPIES)
    assert list(result["sources"]) == ["gaussian", "student", "lenet"]
    for name, source in result["sources"].items():
        given = {"gaussian": inputs.gaussian, "student": inputs.student}.get(name, lambda _: inputs.recorded(gradient))(SIZE)
        for row in source["rows"]:
            codec = get_codec(row["spec"])
            parts = given.tensors if codec.shaped else [given.flat]
            payloads = [codec.encode(part, KEY) for part in parts]
            size = sum(part.size for part in parts)
            assert row["bits"] == 8 * sum(p.nbytes for p in payloads) / size
            missed = [np.sum((codec.decode(p) - x.astype(np.float64)) ** 2) for p, x in zip(payloads, parts, strict=True)]
            energy = [np.sum(x.astype(np.float64) ** 2) for x in parts]
            assert row["error"] == pytest.approx(float(np.sum(missed) / np.sum(energy)), rel=1e-4)
            for speed in ("encode", "feedback", "decode", "decode_add"):
                assert 0 < row[speed]["low"] <= row[speed]["median"] <= row[speed]["high"]
                assert row[speed]["share"] == row[speed]["median"] / row["read"]["median"]
    json.dumps(result)


def test_what_is_over_the_bound_is_counted_from_the_error() -> None:
    [row] = run(["dithered:step=2+ans"], SIZE, None, seconds=0.0, copies=COPIES)["sources"]["gaussian"]["rows"]
    assert row["over_bound"] == pytest.approx(row["bits"] - 0.5 * math.log2(1 + 1 / row["error"]))
    assert row["shrunk"] == pytest.approx(row["error"] / (1 + row["error"]))
    assert row["over_source"] == pytest.approx(row["over_bound"], abs=0.05)  # the source is Gaussian
    assert row["unbiased"]


def test_one_pass_codecs_allocate_next_to_nothing() -> None:
    [row] = run(["bf16"], 1 << 18, None, seconds=0.0, copies=COPIES)["sources"]["gaussian"]["rows"]
    assert row["allocated"]["encode"] <= 0.05
    assert row["allocated"]["decode"] <= 0.05


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = [["bf16", "identity"], SIZE, None, 0.0, 1, None, None]
    assert bench_codecs(*words) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert bench_codecs(*words) == 0
    shown = re.split(r"\r\x1b\[K", capsys.readouterr().err)
    inputs_of = ["bf16 on gaussian", "identity on gaussian", "bf16 on student", "identity on student"]
    assert shown == ["", *(f"{number}/4  {what}" for number, what in enumerate(inputs_of, 1)), ""]


def test_a_codec_that_fails_is_reported_and_the_others_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    x = np.ones(SIZE, np.float32)
    theory = curve(x)
    x[17] = np.nan
    row = _row("qsgd", get_codec("qsgd"), Memory(inputs.Input("broken", x, [x]), COPIES), theory, 0.0)
    assert row["failed"].startswith("NonFiniteGradientError: gradient is nan at flat index 17")
    source = {"size": SIZE, "zeros": 0.0, "curve": {}, "cached": {"median": 1.0}, "rows": [row]}
    show({"cpu": "c", "cores": 1, "date": "d", "sources": {"broken": source}})
    assert "failed: qsgd: NonFiniteGradientError" in capsys.readouterr().out


@pytest.mark.parametrize("content", [{}, {"bias": np.ones(3, np.float32)}, {"w": np.full((2, 2), np.inf, np.float32)}])
def test_a_file_that_cannot_be_measured_is_refused(tmp_path: Path, content: dict[str, Floats]) -> None:
    path = tmp_path / "g.safetensors"
    save_file(content, path)
    with pytest.raises(ConfigurationError, match="--gradient"):
        inputs.recorded(path)
    path.write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        inputs.recorded(path)


def test_record_refuses_what_it_cannot_write(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="safetensors"):
        record(Config(), 0, tmp_path / "gradient.bin")


def test_the_versions_with_operators_do_the_same_work() -> None:
    torch.manual_seed(0)
    x = torch.randn(512 * 64)
    indices, values = torch_codecs.OPERATORS["topk"](x)  # type: ignore[misc]
    assert set(indices.tolist()) == set(np.argsort(-np.abs(x.numpy()))[: x.numel() // 100].tolist())
    assert torch.equal(values, x[indices])
    norms, levels = torch_codecs.OPERATORS["qsgd"](x)  # type: ignore[misc]
    decoded = levels.float() * norms / 15
    assert float((decoded - x.view(-1, 512)).abs().max() * 15 / norms.max()) < 1
    assert abs(float((decoded.view(-1) - x).mean())) < 4 * float((decoded.view(-1) - x).std()) / x.numel() ** 0.5
    scale, trits = torch_codecs.OPERATORS["terngrad"](x)  # type: ignore[misc]
    assert set(trits.tolist()) <= {-1, 0, 1}
    assert abs(float(trits.float().mean() * scale - x.mean())) < 4 * float(scale) / x.numel() ** 0.5
    assert torch_codecs.OPERATORS["sign"](x).tolist() == np.sign(x.numpy()).astype(int).tolist()  # type: ignore[attr-defined]
    assert torch_codecs.measure("dithered", Rotation(x.numpy(), 0), 0.0) is None
    assert torch_codecs.measure("sign", Rotation(x.numpy(), 0), 0.0)["median"] > 0  # type: ignore[index]


def test_the_command_prints_and_writes_json_and_both_pictures(tmp_path: Path, gradient: Path) -> None:
    arguments = ["bench", "codecs", "--codec", "qsgd", "--codec", "topk", "--codec", "identity", "--size", "4096"]
    arguments += ["--seconds", "0", "--copies", "1", "--gradient", str(gradient)]
    arguments += ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert "over R(D)" in done.output
    assert {row["spec"] for row in json.loads((tmp_path / "r.json").read_text())["sources"]["lenet"]["rows"]} == {
        "qsgd", "topk", "identity",
    }  # fmt: skip
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "p.svg").read_text()


def test_the_command_records(tmp_path: Path) -> None:
    path = tmp_path / "fc.safetensors"
    arguments = ["bench", "record", "--output", str(path), "--network", "FC", "--dataset", "digits", "--steps", "0"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    values = sum(each.size for each in load_file(path).values())
    assert f"{values:,} values" in done.output


@pytest.mark.parametrize("spec", ["qsgd", "svd"])
def test_a_copy_is_seen_in_the_same_parts_as_the_input(gradient: Path, spec: str) -> None:
    codec = get_codec(spec)
    for given in (inputs.gaussian(SIZE), inputs.recorded(gradient)):
        found = given.parts_of(given.flat.copy(), codec)
        assert [part.shape for part in found] == [part.shape for part in given.parts(codec)]
        assert all((a == b).all() for a, b in zip(found, given.parts(codec), strict=True))
