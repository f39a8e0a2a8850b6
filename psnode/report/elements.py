"""HTML and SVG as trees of elements.

Text and attributes are escaped when a tree is written. Only psnode's own style and script are not escaped.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, tostring

from psnode.protocol.messages import plain

MOST_CELLS = 300  # maximum rows of a table
MOST_LETTERS = 2000  # maximum characters of a text

Content = Element | str | float | None


def e(tag: str, *children: Content, **attributes: object) -> Element:
    """Return an element with the tag `tag`. Children that are None are left out.

    The names `for_` and `view_box` stand for the attributes `for` and `viewBox`.
    """
    made = Element(
        tag, {_NAMES.get(name, name.rstrip("_").replace("_", "-")): _text(value) for name, value in attributes.items()}
    )
    for child in children:
        add(made, child)
    return made


_NAMES = {"view_box": "viewBox", "http_equiv": "http-equiv"}


def add(parent: Element, child: Content) -> None:
    """Append an element or a text to `parent`. None is ignored."""
    if isinstance(child, Element):
        parent.append(child)
    elif child is not None:
        text = _text(child)
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + text
        else:
            parent.text = (parent.text or "") + text


def _text(value: object) -> str:
    text = plain(str(value))
    return text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} ... ({len(text):,} characters)"


def code(tag: str, text: str) -> Element:
    """Return an element with psnode's own style or script as its text, which is not escaped."""
    made = Element(tag)
    made.text = text
    return made


def table(caption: str, heads: Iterable[Content], rows: Iterable[Iterable[Content]], *, first: bool = True) -> Element:
    """Return a table inside an element that can scroll sideways.

    The first cell of a row is the row's header unless `first` is False. Rows after the first MOST_CELLS are left out.
    """
    body, left = e("tbody"), 0
    for number, row in enumerate(rows):
        if number >= MOST_CELLS:
            left += 1
            continue
        cells = list(row)
        line = e("tr", *(_cell("th" if first and not index else "td", cell) for index, cell in enumerate(cells)))
        if first:
            line[0].set("scope", "row")
        body.append(line)
    more = f" The first {MOST_CELLS} of {MOST_CELLS + left:,} rows." if left else ""
    head = e("thead", e("tr", *(e("th", cell, scope="col") for cell in heads)))
    return e(
        "div", e("table", e("caption", caption + more), head, body), class_="scroll", tabindex=0, role="group", aria_label=caption
    )


def _cell(tag: str, content: Content) -> Element:
    numeric = isinstance(content, (int, float)) or (isinstance(content, str) and content[:1].isdigit())
    made = e(tag, content if content is not None else "–")
    if numeric and tag == "td":
        made.set("class", "number")
    return made


def document(title: str, policy: str, style: Element, main: Iterable[Element], script: Element) -> bytes:
    """Return a whole HTML page in UTF-8 that loads no other files. `policy`: its Content-Security-Policy."""
    head = e(
        "head",
        e("meta", charset="utf-8"),
        e("meta", http_equiv="Content-Security-Policy", content=policy),
        e("meta", name="viewport", content="width=device-width, initial-scale=1"),
        e("meta", name="color-scheme", content="light dark"),
        e("title", title),
        style,
    )
    page = e("html", head, e("body", *main, script), lang="en")
    return BEGINNING + tostring(page, encoding="unicode", method="html").encode() + b"\n"


BEGINNING = b"<!DOCTYPE html>\n"
