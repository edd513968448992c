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
        code = _print_version() if argv == ["--version"] else _run_reporting_problems(argv)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _exit_by_signal("SIGINT")
    except BrokenPipeError:
        return _exit_by_signal("SIGPIPE")
    except OSError as error:
        from quarterdeck.cli import errors

        _discard_stdout()
        return errors.report_problem(errors.from_os_error(error), as_json="--json" in argv)
    return code


def _print_version() -> int:
    """Asked by scripts to see whether qd is there at all; it needs none of the rest."""
    from quarterdeck import __version__

    sys.stdout.write(f"quarterdeck {__version__}\n")
    return 0


def _run_reporting_problems(argv: list[str]) -> int:
    """Runs the command; a problem becomes a sentence and an exit code."""
    from quarterdeck.core.errors import Problem

    try:
        return _run(argv)
    except Problem as problem:
        from quarterdeck.cli import errors

        return errors.report_problem(problem, as_json="--json" in argv)


def _run(argv: list[str]) -> int:
    from quarterdeck.cli import fast_parser
    from quarterdeck.cli.context import Context

    instruction = os.environ.get("_QD_COMPLETE")
    if instruction:
        from quarterdeck.cli import click_parser

        return click_parser.complete(instruction)
    match = fast_parser.find_command(argv)
    parsed = fast_parser.parse(match.command, match.rest) if match else None
    if parsed is None:
        from quarterdeck.cli import click_parser

        outcome = click_parser.parse(argv)
        if isinstance(outcome, int):
            return outcome
        parsed = outcome
    return parsed.command.run(Context(parsed, os.environ))


def _prepare_streams() -> None:
    """A closed stream swallows, and a narrow encoding escapes: neither is a reason for a traceback."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - until the process ends
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _exit_by_signal(signal_name: str) -> int:
    """Ends as the signal itself would have ended us, so that the shell (and a loop in it) sees what
    happened."""
    import signal

    number = signal.Signals[signal_name]
    _discard_stdout()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def _discard_stdout() -> None:
    """What cannot be written now (nobody reads, the disk is full) Python would try again on its way out,
    and complain with an exit code of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
