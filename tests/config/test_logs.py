"""The log: shown on standard error as psnode's lines, unless the program has its own handlers."""

from __future__ import annotations

import io
import logging

import pytest

from psnode.config.logs import shown

LOG = logging.getLogger("psnode.master.test")


@pytest.mark.parametrize(("rank", "prefix"), [(0, "psnode: "), (3, "psnode: rank 3: ")])
def test_a_line_begins_with_the_rank_that_is_not_0(rank: int, prefix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with shown(rank):
        LOG.info("100 %% of %d", 7)
        LOG.debug("nobody asked for this")
    LOG.info("nobody shows this any more")
    assert capsys.readouterr().err == f"{prefix}100 % of 7\n"


def test_a_line_is_shown_once_where_a_run_is_part_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    with shown(), shown():
        LOG.warning("once")
    assert capsys.readouterr().err == "psnode: once\n"


def test_a_program_with_handlers_of_its_own_gets_the_records(capsys: pytest.CaptureFixture[str]) -> None:
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    logging.getLogger().addHandler(handler)
    try:
        with shown():
            LOG.warning("lost")
    finally:
        logging.getLogger().removeHandler(handler)
    assert text.getvalue() == "psnode.master.test WARNING lost\n"
    assert capsys.readouterr().err == ""
