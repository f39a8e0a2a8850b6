"""The configuration: accepted and refused values, error messages, sources, and changes at a resume."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psnode.config import Config, settings
from psnode.config.changes import plan_changes, resume_conflicts
from psnode.config.declaration import Setting
from psnode.config.load import load
from psnode.errors import ConfigurationError

# users' scripts rely on these names and defaults, so changes must be noticed
DEFAULTS = {
    "network": "LeNet", "dataset": "digits", "batch_size": 32, "test_batch_size": 1000, "seed": 1, "optimizer": "sgd", "lr": None,
    "lr_schedule": "constant", "lr_shrinkage": 0.95, "scheme": "polar-2bit", "min_compress_bytes": 4096, "consistency": "bsp",
    "start_deadline": 60.0, "deadline": None, "pause_deadline": 120.0, "stop_deadline": 20.0, "spares": 0,
    "hash_every": 50, "eval_freq": 50, "enable_gpu": False, "resume": False,
}  # fmt: skip
MAY_CHANGE = {
    "data_dir", "download", "test_batch_size", "max_steps", "epochs", "overlap", "comm_type", "start_deadline", "deadline",
    "pause_deadline", "stop_deadline", "spares",
    "hash_every", "min_workers", "train_dir", "eval_freq", "keep_last", "resume", "log_interval", "timeline", "tensorboard",
    "local", "debug", "quiet", "init_from", "checkpoint_minutes", "record_history", "trust_run", "norm_cap",
    "new_head", "data_workers", "log_to", "checkpoint_memory", "checkpoint_residuals", "memory_check",
    "stop_after", "enable_gpu", "gpu_master", "allow_unlike_versions", "threads",
}  # fmt: skip

MAKE_ANOTHER_PLAN = {"topology", "group_by", "group_bytes", "min_compress_bytes", "plan", "small_tensors"}

words = st.text(st.characters(codec="utf-8", exclude_characters="\n\0"), max_size=20)


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Return a strategy for values that the setting's rules accept."""
    rules = setting.rules
    if rules.choices:
        items: st.SearchStrategy[Any] = st.sampled_from(rules.choices)
    elif setting.kind is int:
        low = int(rules.minimum or 0)
        items = st.integers(low, int(rules.maximum) if rules.maximum is not None else low + 2**40)
    elif setting.kind is float:
        low = rules.minimum if rules.minimum is not None else rules.above or 0.0
        items = st.floats(low, rules.maximum or 1e9, exclude_min=rules.above is not None)
    elif setting.kind is bool:
        items = st.booleans()
    elif setting.kind is Path:
        items = words.map(Path)
    else:
        items = words
    if setting.many:
        items = st.lists(items, max_size=4).map(tuple)
    return st.none() | items if setting.optional else items


configs = st.fixed_dictionaries({}, optional={name: values_of(setting) for name, setting in settings().items()}).map(
    lambda fields: Config(**fields)
)


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_default(name: str, value: object) -> None:
    assert getattr(Config(), name) == value


def test_the_default_configuration_is_valid() -> None:
    Config().validate(given=())


def test_every_setting_is_explained() -> None:
    assert [name for name, setting in settings().items() if not setting.rules.help.strip()] == []


@given(configs)
def test_a_configuration_survives_json(config: Config) -> None:
    assert Config.from_dict(json.loads(json.dumps(config.to_dict(), allow_nan=False))) == config


@given(configs)
def test_what_the_command_line_would_print_parses_back(config: Config) -> None:
    for name, setting in settings().items():
        value = getattr(config, name)
        if value is not None and setting.kind in (int, float) and not setting.many:
            assert setting.parse(repr(value), setting.flag) == value


def test_from_dict_refuses_unknown_and_missing_names() -> None:
    fields = Config().to_dict()
    with pytest.raises(ConfigurationError, match="unknown setting 'lrr'; did you mean lr"):
        Config.from_dict({**fields, "lrr": 1})
    del fields["seed"]
    with pytest.raises(ConfigurationError, match="'seed' is missing"):
        Config.from_dict(fields)


BAD = [
    ("lr", 0, "above 0", "leave it out"),
    ("lr", -1.0, "above 0", "leave it out"),
    ("lr", float("nan"), "above 0", "leave it out"),
    ("lr", float("inf"), "above 0", "leave it out"),
    ("lr", "fast", "a number", "leave it out"),
    ("lr", True, "a number", "leave it out"),
    ("batch_size", 0, "at least 1", "32"),
    ("batch_size", 1.5, "whole number", "32"),
    ("seed", 2**63, "from 0 to", "1"),
    ("seed", -1, "from 0 to", "1"),
    ("momentum", 1.0, "from 0 to 0.9999", "leave it out"),
    ("threads", -1, "at least 0 or auto", "auto"),
    ("timeline", 1, "true or false", "false"),
    ("optimizer", "adma", "one of sgd, adam, adamw", "did you mean adam"),
    ("optimizer", 3, "text", "sgd"),
    ("lr_schedule", "cosin", "constant, shrink, multistep, cosine, poly", "did you mean cosine"),
    ("consistency", "whatever", "bsp", "--consistency"),
    ("lr_milestones", 30, "a list", "whole number"),
    ("lr_milestones", (30, 0), "at least 1", "leave it out"),
    ("task", "a\nb", "one line", "--task"),
    ("svd_rank", 0, "at least 1|from 1", "leave it out"),
    ("local", 0, "from 1", "leave it out"),
]


@pytest.mark.parametrize(("name", "value", "bound", "remedy"), BAD)
def test_a_bad_value_is_refused_in_one_line_with_name_bound_value_and_remedy(
    name: str, value: Any, bound: str, remedy: str
) -> None:
    with pytest.raises(ConfigurationError, match=bound) as caught:
        Config(**{name: value})
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("--" + name.replace("_", "-"))
    assert remedy in message
    shown = {str(value), repr(value), repr(float(value)) if isinstance(value, (int, float)) else ""}
    assert any(text and text in message for text in shown) or isinstance(value, tuple)


CONTRADICTIONS = [
    ({"lr_shrinkage": 0.9}, "--lr-shrinkage needs --lr-schedule shrink, not constant"),
    ({"lr_milestones": (3,)}, "--lr-milestones needs --lr-schedule multistep"),
    ({"lr_power": 2.0, "lr_schedule": "cosine"}, "--lr-power needs --lr-schedule poly, not cosine"),
    ({"lr_schedule": "multistep"}, "--lr-milestones must be rising epochs"),
    ({"lr_schedule": "multistep", "lr_milestones": (5, 3)}, "rising"),
    ({"lr_schedule": "multistep", "lr_milestones": (3, 3)}, "rising"),
    ({"nesterov": True, "optimizer": "adam"}, "--nesterov needs --optimizer sgd, not adam"),
    ({"nesterov": True, "momentum": 0.0}, "--nesterov needs --momentum above 0"),
    ({"synthetic_classes": 3}, "--synthetic-classes needs --dataset synthetic, not digits"),
    ({"dataset": "synthetic", "synthetic_shape": (3, 32)}, "--synthetic-shape must be channels,height,width"),
    ({"group_by": "layer", "group_bytes": 4096}, "--group-bytes needs --group-by bytes, not layer"),
    ({"task": "task.py", "network": "VGG11"}, "--network has no meaning with --task"),
    ({"task": "task.py", "data_dir": "x"}, "--data-dir has no meaning with --task"),
    ({"download": True}, "--download needs --data-dir"),
    ({"task_option": ("width",)}, "--task-option must be KEY=VALUE, not 'width'"),
    ({"task_option": ("a=1", "a=2")}, "--task-option names a key twice"),
    ({"local": 2, "topology": "sharded:servers=256"}, "workers and servers in one process, not 2 and 255: name fewer"),
    ({"plan": "plan.json", "topology": "auto"}, "--topology auto has no meaning with --plan FILE, whose plan names one"),
    ({"local": 3, "num_aggregate": 2}, "--num-aggregate must be the number of workers, 3, under bsp, not 2"),
]


@pytest.mark.parametrize(("fields", "message"), CONTRADICTIONS)
def test_settings_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Config(**fields).validate()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_job_needs_a_worker_and_bsp_waits_for_all_of_them() -> None:
    with pytest.raises(ConfigurationError, match="mpirun -n 2"):
        Config().check_workers(0)
    with pytest.raises(ConfigurationError, match="number of workers, 4, under bsp, not 3"):
        Config(num_aggregate=3).check_workers(4)
    Config(num_aggregate=4).check_workers(4)


@pytest.mark.parametrize(
    "value",
    ["net", "sharded", "sharded:servers=", "sharded:servers=0", "sharded:servers=N", "sharded:servers=2x", "mesh:master=2"],
)
def test_an_unknown_topology_is_refused_with_a_list_of_all(value: str) -> None:
    told = r"--topology must be one of star, mesh, mesh:master=auto, gather, star:down=tree, auto, sharded:servers=N, not "
    with pytest.raises(ConfigurationError, match=f"^{told}{re.escape(repr(value))}"):
        load({"topology": value}, {})


def test_a_topology_may_have_a_number() -> None:
    found = [load({"topology": value}, {}) for value in ("star", "sharded:servers=1", "sharded:servers=12")]
    assert [(config.topology, config.servers) for config in found] == [
        ("star", 0), ("sharded:servers=1", 0), ("sharded:servers=12", 11),
    ]  # fmt: skip


def test_choices_ignore_case() -> None:
    assert Config(optimizer="AdamW").optimizer == "adamw"
    assert Config(comm_type="bcast").comm_type == "Bcast"


def test_task_options_keep_everything_after_the_first_equals_sign() -> None:
    assert Config(task_option=("a=1", "path=x=y", "empty=")).task_options() == {"a": "1", "path": "x=y", "empty": ""}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "runs/lenet-digits-polar-2bit"),
        ({"network": "torchvision:vgg11"}, "runs/torchvision-vgg11-digits-polar-2bit"),
        ({"scheme": "qsgd:levels=7,bucket=64"}, "runs/lenet-digits-qsgd-levels=7-bucket=64"),
        ({"task": "examples/text/task.py"}, "runs/task-polar-2bit"),
        ({"train_dir": "elsewhere"}, "elsewhere"),
    ],
)  # fmt: skip
def test_directory(fields: dict[str, Any], expected: str) -> None:
    assert Config(**fields).directory == Path(expected)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, 10 * 22),
        ({"epochs": 3}, 66),
        ({"max_steps": 1000}, 1000),
        ({"max_steps": 50, "epochs": 3}, 50),
        ({"max_steps": 70, "epochs": 3}, 66),
    ],
)
def test_the_first_of_steps_and_epochs_ends_the_run(fields: dict[str, Any], expected: int) -> None:
    assert Config(**fields).total_steps(22) == expected


def changed(setting: Setting) -> Any:
    """Return a value that is not the default."""
    samples: dict[Any, Any] = {int: 4, float: 2.5 if setting.rules.above == 1 else 0.5, bool: True, str: "x", Path: Path("x")}
    others = [choice for choice in setting.rules.choices if choice != setting.default]
    if setting.rules.choices and not others:
        return None
    value = others[0] if others else not setting.default if setting.kind is bool else samples[setting.kind]
    return (value,) if setting.many else value


@pytest.mark.parametrize("name", settings())
def test_resume_compares_exactly_what_makes_the_job(name: str) -> None:
    value = changed(settings()[name])
    if value is None:
        pytest.skip("has one choice only")
    old = Config()
    new = Config(**{"scheme": old.scheme, name: value})
    assert old != new
    conflicts = resume_conflicts(new, old)
    told = f"{settings()[name].flag} is "
    assert [line.startswith(told) for line in plan_changes(new, old)] == [True] * (name in MAKE_ANOTHER_PLAN)
    assert (new.digest() == old.digest()) == (name in MAY_CHANGE)
    if name in MAY_CHANGE | MAKE_ANOTHER_PLAN:
        assert conflicts == []
    else:
        assert len(conflicts) == 1
        assert conflicts[0].startswith(told)


def test_digest_is_the_same_in_another_process() -> None:
    config = Config(lr=0.125, scheme="qsgd", lr_milestones=(1, 2))
    program = "import sys, json; from psnode.config import Config; print(Config.from_dict(json.load(sys.stdin)).digest())"
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(config.to_dict()), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert int(done.stdout) == config.digest()
    assert 0 <= config.digest() < 2**64


# --- sources ---------------------------------------------------------------------------------------------------------


def toml(path: Path, text: str) -> Path:
    file = path / "run.toml"
    file.write_text(text)
    return file


def test_a_flag_wins_over_a_variable_and_a_variable_over_the_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "lr = 1\nbatch-size = 2\nseed = 3\n")
    config = load({"lr": 0.3}, {"PSNODE_LR": "0.2", "PSNODE_BATCH_SIZE": "20"}, file)
    assert (config.lr, config.batch_size, config.seed) == (0.3, 20, 3)


def test_a_file_may_be_named_by_a_variable_and_a_flag_wins(tmp_path: Path) -> None:
    file = toml(tmp_path, "seed = 3")
    assert load({}, {"PSNODE_CONFIG": str(file)}).seed == 3
    other = tmp_path / "other.toml"
    other.write_text("seed = 4")
    assert load({}, {"PSNODE_CONFIG": str(file)}, other).seed == 4


def test_a_file_spells_every_type(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        lr = 2
        nesterov = true
        lr_milestones = [3, 6]
        data-dir = "d"
        group-bytes = "auto"
        [task-option]
        width = 8
        deep = true
        """,
    )
    fields = load({}, {}, file)
    assert (fields.lr, fields.nesterov, fields.lr_milestones, fields.data_dir) == (2.0, True, (3, 6), Path.cwd() / "d")
    assert fields.task_options() == {"width": "8", "deep": "true"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr = 1", "unknown key 'lrr' in .*run.toml; did you mean lr"),
        ("batch_sise = 1", "unknown key 'batch_sise' in .*; did you mean batch-size"),
        ("lr = -1", "lr in .*run.toml must be a number above 0, not -1"),
        ("lr = '1'", "must be a number"),
        ("timeline = 'yes'", "must be true or false"),
        ("batch-size = 1\nbatch_size = 2", "twice"),
        ("lr =", "is not valid TOML"),
        ("[train]\nlr = 1", "unknown key 'train'"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        load({}, {}, toml(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load({}, {}, tmp_path / "none.toml")


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("PSNODE_LRR", "1", "unknown variable PSNODE_LRR; did you mean PSNODE_LR"),
        ("PSNODE_LR", "x", "PSNODE_LR must be a number above 0, not 'x'"),
        ("PSNODE_NESTEROV", "maybe", "PSNODE_NESTEROV must be true or false, not 'maybe'"),
    ],
)
def test_a_bad_variable_is_refused(variable: str, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        load({}, {variable: text})


@pytest.mark.parametrize(("text", "value"), [("1", True), ("true", True), ("Yes", True), ("off", False), ("0", False)])
def test_a_variable_spells_a_bool(text: str, value: bool) -> None:
    assert load({}, {"PSNODE_TIMELINE": text}).timeline is value


def test_variables_spell_lists_and_words() -> None:
    config = load(
        {}, {"PSNODE_LR_MILESTONES": "3, 6", "PSNODE_TASK_OPTION": "a=1,b=2", "PSNODE_THREADS": "auto", "PSNODE_VENV": "x"}
    )
    assert (config.lr_milestones, config.task_options(), config.threads) == ((3, 6), {"a": "1", "b": "2"}, 0)


def test_variables_of_the_scripts_are_no_settings() -> None:
    names = ("PSNODE_VENV", "PSNODE_PYTHON", "PSNODE_MPI", "PSNODE_CONSTRAINTS")
    assert load({}, dict.fromkeys(names, "x")) == load({}, {})


def test_lr_shrinkage_alone_chooses_the_shrink_schedule() -> None:
    assert load({"lr_shrinkage": 0.95}, {}).lr_schedule == "shrink"
    assert load({}, {"PSNODE_LR_MILESTONES": "3"}).lr_schedule == "multistep"


def test_a_setting_without_effect_is_refused_even_at_its_default() -> None:
    with pytest.raises(ConfigurationError, match="--lr-shrinkage needs --lr-schedule shrink, not cosine"):
        load({"lr_shrinkage": 0.95, "lr_schedule": "cosine"}, {})
    with pytest.raises(ConfigurationError, match="--network has no meaning with --task"):
        load({"network": "LeNet", "task": "t.py"}, {})


def test_a_resumed_run_keeps_what_nobody_sets(tmp_path: Path) -> None:
    before = Config(lr=0.5, lr_schedule="poly", seed=9, local=2, max_steps=10, train_dir=tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict()}))
    after = load({"resume": True, "train_dir": tmp_path, "max_steps": 20}, {})
    assert after == replace(before, resume=True, local=None, max_steps=20)
    assert load({"train_dir": tmp_path}, {}).lr == Config().lr


def test_a_resumed_run_that_was_given_something_else_has_a_conflict(tmp_path: Path) -> None:
    before = Config(lr=0.5)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict()}))
    after = load({"resume": True, "train_dir": tmp_path, "lr": 0.01}, {})
    assert resume_conflicts(after, before) == ["--lr is 0.5 in the checkpoint but 0.01 now"]


def test_a_resumed_run_leaves_out_the_size_of_groups_where_it_is_given_groups_without_one(tmp_path: Path) -> None:
    before = Config(group_bytes=1 << 20)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict()}))
    after = load({"resume": True, "train_dir": tmp_path, "group_by": "layer"}, {})
    assert after.group_bytes == 0
    assert plan_changes(after, before) == ["--group-by is bytes in the checkpoint but layer now"]
    assert load({"resume": True, "train_dir": tmp_path, "group_by": "bytes"}, {}).group_bytes == 1 << 20
    with pytest.raises(ConfigurationError, match="--group-bytes needs --group-by bytes, not model"):
        load({"resume": True, "train_dir": tmp_path, "group_by": "model", "group_bytes": 4096}, {})


def test_a_resumed_run_keeps_its_topology_where_it_is_to_be_decided(tmp_path: Path) -> None:
    again = {"resume": True, "train_dir": tmp_path, "topology": "auto"}
    assert load(again, {}).topology == "auto"  # the record is on the host of rank 0
    before = Config(train_dir=tmp_path, topology="sharded:servers=2", group_bytes=70_000)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict()}))
    found = load(again, {})
    assert (found.topology, found.servers, found.group_bytes) == ("sharded:servers=2", 1, 70_000)
    assert load({"resume": True, "train_dir": tmp_path}, {"PSNODE_TOPOLOGY": "auto"}).topology == "sharded:servers=2"
    assert load({"train_dir": tmp_path / "new", "topology": "auto"}, {}).topology == "auto"


def test_a_resumed_run_with_another_topology_gets_groups_of_its_own_size_unless_one_is_given(tmp_path: Path) -> None:
    before = Config(group_bytes=16 << 20)
    (tmp_path / "config.json").write_text(json.dumps({"config": before.to_dict()}))
    again = {"resume": True, "train_dir": tmp_path}
    assert load({**again, "topology": "mesh"}, {}).group_bytes == 0
    assert load({**again, "topology": "mesh", "group_bytes": 4096}, {}).group_bytes == 4096
    assert load({**again, "topology": "star"}, {}).group_bytes == 16 << 20
    assert load(again, {}).group_bytes == 16 << 20


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"config": 3}', '{"config": {"lr": 1}}'])
def test_a_damaged_record_changes_nothing_here(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert load({"resume": True, "train_dir": tmp_path}, {}).lr == Config().lr
