"""Entry point of `qd`: from `sys.argv` to an exit code. Handles every way in which a command can end."""

from __future__ import annotations

import os
import sys

# No other imports at module level: `typing` alone would double the run time of `qd --version`.


def main() -> int:
    """Run `qd`; the console script calls this."""
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
        return errors.report_problem(errors.problem_from_os_error(error), as_json="--json" in argv)
    return code


def _print_version() -> int:
    # A fast path: scripts run `qd --version` to check that qd is installed, and it needs no other module.
    from quarterdeck import __version__

    sys.stdout.write(f"quarterdeck {__version__}\n")
    return 0


def _run_reporting_problems(argv: list[str]) -> int:
    """Run the command. A problem is written to stderr and becomes an exit code."""
    from quarterdeck.core.errors import Problem

    try:
        return _run(argv)
    except Problem as problem:
        from quarterdeck.cli import errors

        return errors.report_problem(problem, as_json="--json" in argv)
    except ModuleNotFoundError as error:
        # Commands that need tmux or a terminal import modules that only POSIX systems have, when they run.
        if sys.platform != "win32":
            raise
        from quarterdeck.cli import errors
        from quarterdeck.core.errors import Invalid

        problem = Invalid("not_supported", f"This command does not run on Windows: it needs the module {error.name}.")
        return errors.report_problem(problem, as_json="--json" in argv)


def _run(argv: list[str]) -> int:
    from quarterdeck.cli import fast_parser
    from quarterdeck.cli.context import Context

    instruction = os.environ.get("_QD_COMPLETE")
    if instruction:
        from quarterdeck.cli import click_parser

        return click_parser.complete(instruction)
    match = fast_parser.find_command(argv)
    parsed = fast_parser.parse(match.command, match.args) if match else None
    if parsed is None:
        from quarterdeck.cli import click_parser

        outcome = click_parser.parse(argv)
        if isinstance(outcome, int):
            return outcome
        parsed = outcome
    return parsed.command.run(Context(parsed, os.environ)) or 0


def _prepare_streams() -> None:
    """Prevent tracebacks: discard the output of a closed stream, and escape characters that cannot be encoded."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115 - stays open until the process exits
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _exit_by_signal(signal_name: str) -> int:
    """End the process with the signal itself, so that the shell, and a loop in a script, sees how the command ended."""
    import signal

    signal_number = signal.Signals[signal_name]
    _discard_stdout()
    signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)
    return 128 + signal_number


def _discard_stdout() -> None:
    """Drop output that cannot be written (closed pipe, full disk).

    Otherwise Python would flush it again at exit, fail again, and replace the exit code.
    """
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
