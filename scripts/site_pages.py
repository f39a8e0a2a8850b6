"""Hooks of mkdocs.yml. They add pages for files outside docs, adapt links, and insert tables generated from the code.

README.md becomes the first page. CONTRIBUTING.md, CHANGELOG.md, SECURITY.md, and every file or folder to which a page links,
get pages of their own, and links lead to these pages. A line `<!-- made: NAME -->` in a page is replaced by the result of
`MADE[NAME]`.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

# files of the repository that have their own place in the site
PLACES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "reporting.md",
}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
MARK = re.compile(r"^<!-- made: ([\w-]+) -->$", re.M)
LEXERS = {".py": "python", ".sh": "bash", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".cfg": "ini", ".cff": "yaml"}
UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"
CODE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def place(path: str) -> str:
    """Return the page of the site that shows `path`, a file or folder of the repository."""
    if path in PLACES:
        return PLACES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/") + ("/index.md" if (ROOT / path).is_dir() else "")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}.md"


def repository_path(page: str) -> str:
    """Return the file of the repository that `page` of the site shows."""
    return next((path for path, shown in PLACES.items() if shown == page), f"docs/{page}")


def targets(path: str) -> Iterator[str]:
    """Yield the files and folders of the repository to which the page at `path` links."""
    for _, target, _, _ in LINK.findall(CODE.sub("", (ROOT / path).read_text())):
        if "://" not in target and not target.startswith("mailto:"):
            yield posixpath.normpath(posixpath.join(posixpath.dirname(path), target))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are missing in docs to `files`, and return `files` (a hook of mkdocs)."""
    for path, shown in PLACES.items():
        files.append(File.generated(config, shown, content=(ROOT / path).read_text()))
    written = [*PLACES, *(f"docs/{each.src_uri}" for each in files.documentation_pages() if each.abs_src_path)]
    linked = {target for path in written if (ROOT / path).exists() for target in targets(path)}
    for path in sorted(linked | {"docs/results", "docs/decisions"}):
        if (ROOT / path).exists() and files.get_file_from_path(place(path)) is None:
            files.append(File.generated(config, place(path), content=_shown(path)))
    return files


def _shown(path: str) -> str:
    """Return the page for `path`: the text of a file, or a list of the files in a folder."""
    here = ROOT / path
    if not here.is_dir():
        return f"{UNSEARCHED}# {path}\n\n````{LEXERS.get(here.suffix, 'text')}\n{here.read_text().rstrip()}\n````\n"
    title = {"docs/results": "Results", "docs/decisions": "Decisions"}.get(path, path)
    pages = sorted(here.glob("*.md"), reverse=path == "docs/results")
    rows = [f"* [{_title(page)}]({page.name})" + (f" ({page.name[:10]})" if page.name[:4].isdigit() else "") for page in pages]
    rows += [f"* `{file.name}`: {_summary(file)}" for file in sorted(here.glob("*.py"))]
    return f"# {title}\n\n" + "\n".join(rows) + "\n"


def _title(page: Path) -> str:
    return re.sub(r"[\[\]]", "", page.read_text().split("\n", 1)[0].lstrip("# "))


def _summary(file: Path) -> str:
    found = re.match(r'"""(.+?)(?:\n\n|""")', file.read_text(), re.S)
    return " ".join(found[1].split()) if found else ""


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page, with links that lead into the site and with its generated parts inserted (a hook of mkdocs)."""
    if page.file.src_uri.startswith("source/") and not page.file.src_uri.endswith("index.md"):
        return markdown
    path, here = repository_path(page.file.src_uri), posixpath.dirname(page.file.src_uri)

    def led(found: re.Match[str]) -> str:
        before, target, anchor, after = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        aim = place(posixpath.normpath(posixpath.join(posixpath.dirname(path), target)))
        return f"{before}{posixpath.relpath(aim, here or '.')}{anchor or ''}{after}"

    if page.file.generated_by is None or page.file.src_uri in PLACES.values():
        markdown = LINK.sub(led, markdown)
    return MARK.sub(lambda found: MADE[found[1]](), markdown)


def settings_tables() -> str:
    """Return tables of all settings of `psnode train`, one for each part of its help."""
    from psnode.cli.commands import PARTS
    from psnode.config import settings

    rows = list[str]()
    for setting in settings().values():
        if setting.name in PARTS:
            rows += ["", f"## {PARTS[setting.name]}", "", "| flag | default | meaning |", "|---|---|---|"]
        rows.append(f"| `{setting.flag}` | {_default(setting)} | {_meaning(setting)} |")
    return "\n".join(rows[1:]) + "\n"


def _default(setting: Any) -> str:
    from psnode_ec2.example import shown

    words = {value: word for word, value in setting.rules.words.items()}
    if setting.default in (None, (), ""):
        return ""
    return f"`{shown(words.get(setting.default, setting.default) if setting.rules.words else setting.default)}`"


def _meaning(setting: Any) -> str:
    from psnode.config import settings

    rules = setting.rules
    accepted = [f"`{word}`" for word in (*rules.words_told, *rules.words)]
    parts = [re.sub(r"([|*\[\]])", r"\\\1", rules.help)]
    if accepted or rules.range:
        parts.append("Takes " + " or ".join([", ".join(accepted)] * bool(accepted) + [rules.range] * bool(rules.range)) + ".")
    if rules.needs:
        name, value = rules.needs
        needed = (value,) if isinstance(value, str) else value
        parts.append(f"Only with `{settings()[name].flag}` " + ", ".join(f"`{each}`" for each in needed) + ".")
    if rules.aliases:
        parts.append("Also " + ", ".join(f"`{flag}`" for flag in rules.aliases) + ".")
    if not rules.free:
        parts.append("Fixed for a run" + (", but for a new plan." if rules.replans else "."))
    return " ".join(parts)


def commands() -> str:
    """Return the help of every command of `psnode` and `psnode-ec2`."""
    from psnode.cli import app
    from psnode_ec2.cli import cli as ec2

    return "\n".join(_helps("psnode", app) + _helps("psnode-ec2", ec2))


def _helps(name: str, command: click.Command, above: click.Context | None = None) -> list[str]:
    context = click.Context(command, above, name, terminal_width=110, **command.context_settings)
    found = [f"## `{context.command_path}`", "", "```text", command.get_help(context).strip(), "```", ""]
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found += _helps(below, command.commands[below], context)
    return found


MADE: dict[str, Callable[[], str]] = {"settings": settings_tables, "commands": commands}
