"""Lines that cannot be written must not fail those who had something to say."""

from __future__ import annotations

import logging
import os

from quarterdeck.http.json_logging import JsonHandler, LineWriter, set_up_logging


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


async def test_a_log_that_cannot_be_written_costs_its_lines_and_nothing_else() -> None:
    writer = LineWriter(closed_pipe())
    logger = logging.Logger("test")
    logger.addHandler(JsonHandler(writer))
    logger.warning("nobody hears this")
    writer.write(b"nor this\n")
    writer.flush()
    assert writer.lost_lines == 2


async def test_lines_are_written_in_order_and_what_is_urgent_takes_the_rest_along() -> None:
    reading, writing = os.pipe()
    writer = LineWriter(writing)
    writer.write(b"one\n")
    writer.write_now(b"two\n")
    assert os.read(reading, 100) == b"one\ntwo\n"


async def test_what_libraries_say_of_errors_is_logged_without_what_is_secret_in_it() -> None:
    reading, writing = os.pipe()
    logger = logging.Logger("test")
    logger.addHandler(JsonHandler(LineWriter(writing)))
    try:
        raise ValueError("cannot reach redis://me:hunter2@cache/0")
    except ValueError:
        logger.exception("password=hunter2 was of no use")
    line = os.read(reading, 100_000)
    assert b"hunter2" not in line
    assert b"redis://me:***@cache/0" in line
    assert b"password=*** was of no use" in line


async def test_a_library_that_gave_its_logger_a_level_of_its_own_is_as_quiet_as_was_asked_for() -> None:
    root = logging.getLogger()
    before = root.handlers, root.level
    try:
        set_up_logging("error")
        library = logging.Logger("library", logging.WARNING)
        library.parent = root
        record = library.makeRecord("library", logging.WARNING, "", 0, "said", (), None)
        assert not any(handler.level <= record.levelno for handler in root.handlers)
    finally:
        root.handlers, root.level = before
