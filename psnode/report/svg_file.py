"""SVG files, which each contain one drawing in the style of a report."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from xml.etree.ElementTree import Element, tostring

from psnode.errors import ConfigurationError
from psnode.records.metrics import write_atomically
from psnode.report.elements import code


def write_svg(file: Path, drawing: Element, option: str) -> None:
    """Write a drawing to an SVG file. Its folder is created if needed.

    `option`: the command-line option that names the file. Raises ConfigurationError if the file cannot be written.
    """
    drawing.set("xmlns", "http://www.w3.org/2000/svg")
    drawing.set("style", "background: var(--paper); font-family: sans-serif")
    drawing.insert(0, code("style", resources.files("psnode.report").joinpath("report.css").read_text()))
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, tostring(drawing, encoding="unicode").encode() + b"\n")
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}; name another file with {option}") from error
