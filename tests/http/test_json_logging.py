"""JSON log lines: lost lines, order, masked secrets and levels."""

from __future__ import annotations

import logging
import os

from quarterdeck.http.json_logging import JsonHandler, LineWriter, set_up_logging


def closed_pipe() -> int:
    read_end, write_end = os.pipe()
    os.close(read_end)
    return write_end


async def test_unwritable_log_loses_its_lines_and_raises_nothing() -> None:
    writer = LineWriter(closed_pipe())
    logger = logging.Logger("test")
    logger.addHandler(JsonHandler(writer))
    logger.warning("first lost line")
    writer.write(b"second lost line\n")
    writer.flush()
    assert writer.lost_line_count == 2


async def test_write_now_writes_buffered_lines_first() -> None:
    read_end, write_end = os.pipe()
    writer = LineWriter(write_end)
    writer.write(b"one\n")
    writer.write_now(b"two\n")
    assert os.read(read_end, 100) == b"one\ntwo\n"


async def test_secrets_in_messages_and_exceptions_are_masked() -> None:
    read_end, write_end = os.pipe()
    logger = logging.Logger("test")
    logger.addHandler(JsonHandler(LineWriter(write_end)))
    try:
        raise ValueError("cannot reach redis://me:hunter2@cache/0")
    except ValueError:
        logger.exception("password=hunter2 was rejected")
    line = os.read(read_end, 100_000)
    assert b"hunter2" not in line
    assert b"redis://me:***@cache/0" in line
    assert b"password=*** was rejected" in line


async def test_configured_level_applies_to_loggers_with_their_own_level() -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        set_up_logging("error")
        library = logging.Logger("library", logging.WARNING)
        library.parent = root
        record = library.makeRecord("library", logging.WARNING, "", 0, "message", (), None)
        assert not any(handler.level <= record.levelno for handler in root.handlers)
    finally:
        root.handlers, root.level = before
