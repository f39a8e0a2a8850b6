"""The common frame of all studies: a dataclass of options, a function that measures rows, and columns that show the rows.

A study is a module of this package that ends with

    STUDY = Study(Options, measure, columns)

    if __name__ == "__main__":
        sys.exit(main(STUDY))

The command line is made from the fields of the options (psnode.config.declaration). The result is one JSON object: hardware and
date, the options, facts and rows. The page depends only on the result, so `--from FILE` can show an earlier result again.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import click

from psnode.bench.hardware import hardware
from psnode.bench.saving import require_matplotlib, save
from psnode.cli.commands import main as run_command
from psnode.cli.debugging import debuggable
from psnode.config.declaration import ABSENT, Setting, click_option, settings_of
from psnode.errors import ConfigurationError

O = TypeVar("O")  # noqa: E741
Row = Mapping[str, Any]
Result = Mapping[str, Any]


class Found(NamedTuple):
    """The rows of a table, and facts, which are figures for all rows together.

    A study that takes long returns an iterator of rows. The result so far is then saved after every row, and `facts` may grow.
    """

    rows: Iterable[Row]
    facts: Mapping[str, Any] = {}


class Column(NamedTuple):
    """A column of a table.

    `cell`: a format string for the members of a row, or a function of the row. `left`: True to align text to the left; numbers
    are aligned to the right.
    """

    title: str
    cell: str | Callable[[Row], str]
    left: bool = False

    def shown(self, row: Row) -> str:
        """Return the text of the cell in `row`."""
        return self.cell.format(**row) if isinstance(self.cell, str) else self.cell(row)


def at(form: str, *path: Any) -> Callable[[Row], str]:
    """Return a cell for `Column`: it formats, with `form`, the number at `path` in a row.

    `path`: keys of nested mappings or lists.
    """

    def cell(row: Row) -> str:
        found: Any = row
        for key in path:
            found = found[key]
        return format(found, form)

    return cell


@dataclasses.dataclass(frozen=True)
class Study(Generic[O]):
    """A study.

    options   dataclass whose fields are declared with psnode.config.declaration.option; ABSENT as default: required
    measure   returns the rows for the options; raises PsnodeError
    columns   columns of the table, or a function of the result that returns them
    head      conditions of the measurement, after date and processor
    foot      lines below the table
    order     sort key of the rows; without it they keep the order in which they were measured
    tables    name of a member of the rows: rows with the same value form a table with this value as its title
    plot      draws a result into a file, for the option --plot
    passed    returns False for a result that misses a bound: the exit code is then 1
    """

    options: type[O]
    measure: Callable[[O], Found]
    columns: Sequence[Column] | Callable[[Result], Sequence[Column]]
    head: Callable[[Result], str] = lambda result: ""
    foot: Callable[[Result], str] = lambda result: ""
    order: Callable[[Row], Any] | None = None
    tables: str = ""
    plot: Callable[[Result, Path], None] | None = None
    passed: Callable[[Result], bool] = lambda result: True


def main(study: Study[Any], arguments: Sequence[str] | None = None) -> int:
    """Run a study with `arguments`, by default the arguments of the process, and return the exit code."""
    name = study.measure.__module__
    if name == "__main__":
        name = f"studies.{Path(sys.argv[0]).stem}"
    return run_command(arguments, command_of(study, name), f"python -m {name}")


def run(study: Study[O], options: O, keep: Callable[[dict[str, Any]], None] = lambda result: None) -> dict[str, Any]:
    """Measure and return the result in the form of JSON.

    `keep` is called after every row from an iterator, with the result so far, which has the member `unfinished`.
    """
    about = hardware()
    found = study.measure(options)
    given = {name: _plain(value) for name, value in vars(options).items()}
    rows = list[Row]()

    def so_far() -> dict[str, Any]:
        return {**about, **given, **found.facts, "rows": list(rows) if study.order is None else sorted(rows, key=study.order)}

    for row in found.rows:
        rows.append(row)
        if not isinstance(found.rows, Sequence):
            keep({"unfinished": True, **so_far()})
    return so_far()


def page(study: Study[Any], result: Result) -> str:
    """Return the result as a page for docs/results, in Markdown."""
    columns = study.columns(result) if callable(study.columns) else study.columns
    ended = " The study was ended before its end." if result.get("unfinished") else ""
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores. {study.head(result)}".rstrip() + ended
    parts = [head]
    for value in dict.fromkeys(row[study.tables] for row in result["rows"]) if study.tables else (None,):
        rows = [row for row in result["rows"] if value is None or row[study.tables] == value]
        parts += [*([] if value is None else [f"## {value}"]), table(columns, rows)]
    if foot := study.foot(result):
        parts.append(foot)
    return "\n\n".join(parts) + "\n"


def table(columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Return `rows` as a table in Markdown."""
    lines = ["| " + " | ".join(column.title for column in columns) + " |"]
    lines.append("|" + "".join("---|" if column.left else "---:|" for column in columns))
    lines += ["| " + " | ".join(column.shown(row) for column in columns) + " |" for row in rows]
    return "\n".join(lines)


def codecs(specs: Sequence[str]) -> tuple[str, ...]:
    """Return the specs of an option --codec, after registering codecs from files.

    A codec given as FILE:NAME is registered, and its spec is replaced by one with its id.
    """
    from psnode.codecs.registry import load_codec

    return tuple(load_codec(spec) for spec in specs)


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else [_plain(each) for each in value] if isinstance(value, tuple) else value


def command_of(study: Study[Any], name: str) -> click.Command:
    """Return the command line of `study`, as a command with the name `name`."""
    settings = settings_of(study.options)
    path = click.Path(path_type=Path)
    common = [
        click.Option(["--json", "json_file"], type=path, metavar="FILE", help="Also write the result to this file."),
        click.Option(["--markdown", "markdown_file"], type=path, metavar="FILE", help="Also write the page to this file."),
        click.Option(["--from", "earlier"], type=path, metavar="FILE", help="Show this result of --json; measure nothing."),
    ]
    if study.plot is not None:
        common.append(click.Option(["--plot", "plot_file"], type=path, metavar="FILE", help="Draw the result into this file."))

    def call(json_file: Path | None, markdown_file: Path | None, earlier: Path | None, **given: Any) -> int:
        plot_file = given.pop("plot_file", None)
        if plot_file is not None:
            require_matplotlib()
        if earlier is None:
            options = study.options(**_values(settings, given))
            result: Result = run(study, options, lambda found: save(found, json_file))
            text = page(study, result)
        else:
            result, text = _shown_again(study, earlier)
        print(text, end="")
        save(result, json_file)
        for file in (markdown_file, plot_file):
            if file is not None:
                file.parent.mkdir(parents=True, exist_ok=True)
        if markdown_file is not None:
            markdown_file.write_text(text)
        if study.plot is not None and plot_file is not None:
            study.plot(result, plot_file)
        return 0 if study.passed(result) and not result.get("unfinished") else 1

    asked = [_asked(setting) for setting in settings.values()]
    command = click.command(name, help=sys.modules[study.measure.__module__].__doc__)(debuggable(call))
    command.params[:0] = [*asked, *common]
    return command


def _asked(setting: Setting) -> click.Option:
    shown = dataclasses.replace(setting, default=None) if setting.default is ABSENT else setting
    return click_option(shown, setting.rules.help)


def _values(settings: Mapping[str, Setting], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of all fields of the options.

    Raises ConfigurationError for a missing required option, and for invalid items of a list.
    """
    values = {}
    for name, setting in settings.items():
        value = given[name]
        if value in (None, ()):
            if setting.default is ABSENT:
                raise ConfigurationError(f"{setting.flag} is missing: {setting.rules.help}")
            value = setting.default
        elif setting.rules.repeated:
            whole = setting.kind in (str, Path)  # items that may contain commas
            value = setting.check(value, setting.label) if whole else setting.parse(",".join(value), setting.label)
        values[name] = value
    return values


def _shown_again(study: Study[Any], file: Path) -> tuple[Result, str]:
    """Return a result that --json has saved, and its page.

    Raises ConfigurationError if the file does not contain a result of this study.
    """
    try:
        result = json.loads(file.read_bytes())
        return result, page(study, result)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"--from {file} holds no such result ({error}): name a file of --json") from error
