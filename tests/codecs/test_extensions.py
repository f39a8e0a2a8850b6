"""Codecs from outside psnode: in a user's file, or offered by an installed package."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.codecs import Payload, available, get_codec, table
from psnode.codecs.registry import known_codec, load_codec
from psnode.codecs.registry.python_files import locate_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.config.load import load
from psnode.config.resolve import resolve
from psnode.errors import CodecSpecError, ConfigurationError, PayloadError
from psnode.jobs.job import run

COPY = '''
from dataclasses import dataclass
import math
import numpy as np
from psnode.codecs import Codec
from psnode.errors import PayloadError

@dataclass(frozen=True, repr=False)
class Copy(Codec):
    """The values as they are."""

    turned: int = 0
    id = "{id}"
    number = {number}

    def _max_body(self, shape):
        return 4 * math.prod(shape)

    def _encode(self, source, key, body, sink):
        x = source.array().reshape(-1)
        body[: 4 * x.size].view(np.float32)[:] = x
        return 4 * x.size

    def _decode(self, body, out):
        if body.size != 4 * out.size:
            raise PayloadError("another size")
        out.reshape(-1)[:] = body.view(np.float32)

class Unfinished(Codec):
    id = "unfinished"
'''


@pytest.fixture
def own(tmp_path: Path) -> Callable[..., Path]:
    def write(name: str = "own", id: str = "copied", number: object = 201) -> Path:  # noqa: A002
        path = tmp_path / f"{name}.py"
        path.write_text(COPY.replace("{id}", id).replace("{number}", str(number)))
        return path

    return write


def test_a_codec_in_a_file_is_known_by_its_id_and_number(own: Any) -> None:
    assert load_codec(f"{own()}:Copy:turned=3+zstd") == "copied:turned=3+zstd"
    codec = get_codec("copied:turned=3")
    assert repr(codec) == "copied:turned=3"
    assert "copied" in available()
    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    data = codec.encode(x, Key.derive(1)).to_bytes()
    assert data[3] == 201
    np.testing.assert_array_equal(codec.decode(Payload.from_bytes(data)), x)


def test_get_codec_takes_what_the_option_takes(own: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own()
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    codec = get_codec("own.py:Copy:turned=3")
    assert repr(codec) == "copied:turned=3"
    assert codec == get_codec(repr(codec)) == get_codec("own.py:Copy:turned=3")
    np.testing.assert_array_equal(codec.decode(codec.encode(x)), x)
    for spec, words in (("own.py:Absent", "has no class 'Absent'"), ("own.py:Copy:none=1", "unknown parameter of codec copied")):
        with pytest.raises(ConfigurationError, match=words):
            get_codec(spec)


def test_get_codec_executes_a_file_anew_when_it_has_changed_and_a_run_does_not(own: Any) -> None:
    """Check that a changed file is executed again by get_codec (a user edits it in a notebook), but not by load_codec: in a
    run, all ranks must use the same class.
    """
    file = own()
    spec = f"{file}:Copy"
    assert load_codec(spec) == "copied"
    first = get_codec(spec)
    file.write_text(file.read_text().replace("turned: int = 0", "turned: int = 7"))
    assert load_codec(spec) == "copied"
    assert repr(get_codec("copied")) == repr(first) == "copied:turned=0"
    assert repr(get_codec(spec)) == "copied:turned=7"


def test_a_spec_of_a_peer_or_a_record_executes_no_file(own: Any, tmp_path: Path) -> None:
    file = own()
    file.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\n" + file.read_text())
    for spec in (f"{file}:Copy", f"{file}:Copy:turned=1", f"contractive({file}:Copy)"):
        with pytest.raises(CodecSpecError, match="give the id here"):
            known_codec(spec)
        with pytest.raises(CodecSpecError, match="give the id here"):
            resolve(Config(downlink=spec))
    assert not (tmp_path / "executed").exists()
    get_codec(f"{file}:Copy")
    assert (tmp_path / "executed").exists()


def test_only_what_a_user_types_is_given_to_get_codec() -> None:
    """Check that get_codec, which executes files, is imported only by modules that receive text from users. Other modules
    use known_codec or load_codec.
    """
    package = Path(table.__file__).parents[1]
    users = {
        str(path.relative_to(package).with_suffix(""))
        for path in package.rglob("*.py")
        if any(
            re.match(r" *from psnode\.codecs(\.registry)? import .*\bget_codec\b", line) for line in path.read_text().splitlines()
        )
    }
    assert users <= {
        "codecs/__init__", "cli/codec_listing", "bench/codecs", "bench/gpu", "jobs/planning/ddp_hooks",
    }  # fmt: skip


def test_psnode_codecs_explains_a_codec_in_a_file(own: Any, psnode: Any) -> None:
    done = psnode("codecs", f"{own()}:Copy:turned=3")
    assert done.code == 0
    assert done.out.startswith("codec copied\n")
    assert "turned=3" in done.out


def test_specs_without_a_file_are_as_they_were() -> None:
    for spec in ("qsgd:levels=15+zstd", "contractive(qsgd)", "nonsense"):
        assert load_codec(spec) == locate_codec(spec) == spec


def test_a_relative_path_means_the_same_elsewhere(own: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own()
    monkeypatch.chdir(tmp_path)
    assert locate_codec("own.py:Copy:turned=1+ans") == f"{tmp_path / 'own.py'}:Copy:turned=1+ans"
    assert load({"codec": "own.py:Copy"}, {}).codec == f"{tmp_path / 'own.py'}:Copy"


def test_training_with_it_is_training_with_the_codec_that_it_copies(own: Any, tmp_path: Path) -> None:
    """Check that weights equal those of dense SGD bit for bit, also after a resume, if a user's codec sends every value
    unchanged.
    """
    common = {"local": 2, "threads": 1, "batch_size": 8, "network": "FC", "eval_freq": 2, "tensorboard": False, "lr": 0.1}

    def trained(name: str, **settings: Any) -> str:
        assert run(Config(**common, train_dir=tmp_path / name, **settings)) == 0
        return str(json.loads((tmp_path / name / "summary.json").read_bytes())["model_hash"])

    plain = trained("plain", scheme="dense", momentum=0.9, max_steps=4)
    file = f"{own()}:Copy"
    assert trained("own", scheme="dense", codec=file, feedback="none", momentum=0.9, max_steps=2) != plain
    path = tmp_path / "own"
    saved = json.loads((path / "config.json").read_bytes())
    assert (saved["config"]["codec"], saved["scheme"]["codec"]) == (file, "copied:turned=0")
    with pytest.raises(ConfigurationError, match=r"would execute .*own\.py:Copy: name it again with --codec, or add --trust-run"):
        load({"resume": True, "train_dir": path}, {})
    resumed = load({"resume": True, "train_dir": path, "codec": file, "local": 2, "max_steps": 4}, {})
    assert run(resumed) == 0
    assert json.loads((path / "summary.json").read_bytes())["model_hash"] == plain


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("{own}:Copy:nothing=1", "unknown parameter of codec copied: 'nothing'"),
        ("{own}:Absent", "has no class 'Absent': it has Copy, Unfinished"),
        ("{own}:Unfinished", "Unfinished is no codec: write a dataclass"),
        ("{own}:", "must name a class"),
        ("{own}:1", "must name a class"),
        ("missing.py:Copy", "codec file .*missing.py does not exist"),
    ],
)
def test_refusals_are_one_line(own: Any, spec: str, words: str) -> None:
    with pytest.raises((ConfigurationError, CodecSpecError), match=words) as caught:
        resolve(Config(codec=spec.replace("{own}", str(own()))))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"number": 5}, "needs a number from 192 to 255"),
        ({"number": 256}, "needs a number from 192 to 255"),
        ({"number": "'192'"}, "needs a number from 192 to 255"),
        ({"id": "qsgd"}, "has the id qsgd: choose another one"),
        ({"id": "Copied"}, "needs an id of lower-case letters"),
    ],
)
def test_ids_and_numbers_of_others_are_refused(own: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CodecSpecError, match=words):
        load_codec(f"{own(**settings)}:Copy")


def test_two_codecs_of_one_number_or_id_are_refused(own: Any) -> None:
    load_codec(f"{own()}:Copy")
    with pytest.raises(CodecSpecError, match="has the number 201, that of copied: choose another one"):
        load_codec(f"{own('second', id='other')}:Copy")
    with pytest.raises(CodecSpecError, match="has the id copied: choose another one"):
        load_codec(f"{own('third', number=202)}:Copy")


def test_an_error_in_the_file_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("\n1 / 0\n")
    with pytest.raises(ConfigurationError, match=r"broken\.py cannot be imported: ZeroDivisionError.*broken\.py:2"):
        load_codec(f"{tmp_path / 'broken.py'}:Copy")


def test_the_payload_of_a_codec_that_is_not_loaded_is_refused(own: Any) -> None:
    load_codec(f"{own(number=213)}:Copy")
    data = get_codec("copied").encode(np.zeros(3, np.float32), Key.derive(1)).to_bytes()
    del table.NAMES[213]
    with pytest.raises(
        PayloadError, match=r"stage 213 is not known: it is a codec's from outside psnode, psnode\.codecs\.register that first"
    ):
        Payload.from_bytes(data)


def offer(folder: Path, *entries: str) -> None:
    """Install a distribution with these entry points in the group psnode.codecs."""
    info = folder / "offering-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offering\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[psnode.codecs]\n" + "\n".join(entries) + "\n")


def test_an_installed_package_offers_codecs(own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a package's codecs are offered, and that no codec is imported before it is named, so that a broken one does
    not affect others.
    """
    own("offered_codec", id="offered", number=240)
    offer(tmp_path, "offered = offered_codec:Copy", "broken = no_such_module:Codec", "misnamed = offered_codec:Copy")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {"offered", "broken"} <= set(available())
    assert "offered_codec" not in sys.modules
    x = np.ones(4, np.float32)
    codec = get_codec("offered")
    np.testing.assert_array_equal(codec.decode(codec.encode(x, Key.derive(1))), x)
    assert resolve(Config(codec="offered")).codec == "offered:turned=0"
    with pytest.raises(CodecSpecError, match=r"codec broken of no_such_module:Codec cannot be imported: ModuleNotFoundError"):
        get_codec("broken")
    with pytest.raises(CodecSpecError, match=r"the entry point misnamed of psnode\.codecs is for a codec of that id"):
        get_codec("misnamed")


def test_a_file_is_executed_once_for_all_workers_of_a_process_and_anew_when_it_has_changed(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    from psnode.codecs.registry.python_files import import_file

    file = tmp_path / "shared_by_workers.py"
    file.write_text("class Mine: pass\n")
    with ThreadPoolExecutor(4) as pool:
        modules = list(pool.map(lambda _: import_file(file, "task"), range(8)))
    assert all(module.Mine is modules[0].Mine for module in modules)
    file.write_text("class Mine: size = 1\n")
    assert import_file(file, "task").Mine.size == 1
    file.write_text("raise OSError('broken')\n")
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="broken"):
            import_file(file, "task")
