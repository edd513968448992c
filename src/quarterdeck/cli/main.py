"""From `sys.argv` to an exit code. Every way a command can end is on this page."""

from __future__ import annotations

import os
import sys

# Nothing else up here: `typing` alone would double the time that `qd --version` takes.


def main() -> int:
    """What the `qd` script calls."""
    argv = sys.argv[1:]
    try:
        _prepare_streams()
        code = _version() if argv == ["--version"] else _ended(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _end_by("SIGINT")
    except BrokenPipeError:
        return _end_by("SIGPIPE")
    except OSError as wrong:
        from quarterdeck.cli import errors

        _let_go_of_stdout()
        return errors.tell(errors.of_system(wrong), as_json="--json" in argv)
    return code


def _version() -> int:
    """Asked by scripts to see whether qd is there at all; it needs none of the rest."""
    from quarterdeck import __version__

    sys.stdout.write(f"quarterdeck {__version__}\n")
    return 0


def _ended(argv: list[str]) -> int:
    """Runs the command; a problem becomes a sentence and an exit code."""
    from quarterdeck.core.errors import Problem

    try:
        return _run(argv)
    except Problem as problem:
        from quarterdeck.cli import errors

        return errors.tell(problem, as_json="--json" in argv)


def _run(argv: list[str]) -> int:
    from quarterdeck.cli import fast_parser
    from quarterdeck.cli.context import Context

    instruction = os.environ.get("_QD_COMPLETE")
    if instruction:
        from quarterdeck.cli import click_parser

        return click_parser.complete(instruction)
    found = fast_parser.walk(argv)
    ask = fast_parser.parse(found.command, found.rest) if found else None
    if ask is None:
        from quarterdeck.cli import click_parser

        outcome = click_parser.parse(argv)
        if isinstance(outcome, int):
            return outcome
        ask = outcome
    return ask.command.run(Context(ask, os.environ))


def _prepare_streams() -> None:
    """A closed stream swallows, and a narrow encoding escapes: neither is a reason for a traceback."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _end_by(name: str) -> int:
    """Ends as the signal itself would have ended us, so that the shell (and a loop in it) sees what
    happened."""
    import signal

    number = signal.Signals[name]
    _let_go_of_stdout()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _let_go_of_stdout() -> None:
    """What cannot be written now (nobody reads, the disk is full) Python would try again on its way out,
    and complain with an exit code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
