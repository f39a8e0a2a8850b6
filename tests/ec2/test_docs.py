"""docs/ec2.md agrees with the code: its settings and permissions are those of the code, and every command has a row."""

from __future__ import annotations

import json
import re
from pathlib import Path

from psnode_ec2.cli import cli
from psnode_ec2.example import shown, spelled
from psnode_ec2.policies import policy
from psnode_ec2.settings import FIELDS, Settings, rule

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "ec2.md").read_text()


def between(mark: str) -> str:
    found = re.search(rf"<!-- {mark}: begin -->\n(.*)<!-- {mark}: end -->", TEXT, re.S)
    assert found
    return found[1]


def settings_table() -> str:
    rows = [f"| `{name}` | {_default(name)} | {rule(setting).replace('|', chr(92) + '|')} |" for name, setting in FIELDS.items()]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *rows, ""])


def _default(name: str) -> str:
    value = spelled(FIELDS[name])
    return "" if value in ("", None, {}, ()) else f"`{shown(value)}`"


def permissions() -> str:
    """Return the permissions for every call in the source, as IAM spells them."""
    source = "".join(path.read_text() for path in (ROOT / "tools" / "ec2").glob("*.py"))
    calls = set(re.findall(r"""\.(?:ask|change|change_shown)\(\s*"(\w+)"|change\w*\(call""", source)) - {""}
    calls |= set(re.findall(r'"((?:revoke|authorize|delete)_\w+)"', source))
    spelled = {"".join(part.capitalize() for part in call.split("_")) for call in calls}
    services = {"GetCallerIdentity": "sts", "GetProducts": "pricing"}
    names = {*(f"{services.get(name, 'ec2')}:{name}" for name in spelled), "ec2:CreateTags", "iam:PassRole"}
    return ", ".join(f"`{name}`" for name in sorted(names)) + "\n"


def test_every_setting_stands_there_with_its_default() -> None:
    assert between("settings") == settings_table()


def test_every_permission_stands_there() -> None:
    assert between("permissions") == permissions()


def test_the_policy_of_users_allows_these_and_no_more() -> None:
    settings = Settings(name="x", instance_profile="nodes", checkpoints="s3://bucket")
    allowed = {
        action
        for each in json.loads(policy("iam-user", settings))["Statement"]
        for action in ([each["Action"]] if isinstance(each["Action"], str) else each["Action"])
    }
    assert {f"`{name}`" for name in allowed} == set(permissions().strip().split(", "))


def test_every_command_stands_there() -> None:
    for name in cli.commands:
        assert re.search(rf"^\| .*`{name}\b", TEXT, re.M), name
