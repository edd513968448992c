"""Runs the examples of a Markdown page as a reader would: in order, in one shell, beside a running server.

A `console` block is run. A line that begins with `$ ` is a command; lines that begin with `> ` continue it, as does a
backslash at the end of a line. The other lines are the expected output, without which the output is not compared. In a
line, `…` matches any text; a line `…` matches any number of lines. A command must succeed, unless its expected output
is an error of `qd` or the next command prints `$?`.

A comment above a block changes that:

    <!-- not run: REASON -->      the block is not run
    <!-- file: worker.py -->      the block is the content of this file, for the commands that follow
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.support.child_processes import minimal_environment, signal_on_parent_death
from tests.support.server import ServerProcess
from tests.support.source import ROOT

DEFAULT_URL = "http://127.0.0.1:4000"
"""The server's URL in the documentation. It is replaced by that of the test's server."""
LIMIT_SECONDS = 90.0
_FENCE = re.compile(
    r"^(?:<!-- (?P<mark>not run|file): (?P<value>.+?) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S
)
_MARKER = "\x1e"


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    file: str | None = None
    not_run_reason: str | None = None


@dataclass(frozen=True)
class Step:
    """A command and the output that the page shows below it."""

    line: int
    command: str
    output: tuple[str, ...]
    may_fail: bool = False


@dataclass(frozen=True)
class Result:
    status: int
    output: str


def read_blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(
            match["language"],
            match["text"],
            text.count("\n", 0, match.start("text")) + 1,
            match["value"] if match["mark"] == "file" else None,
            match["value"] if match["mark"] == "not run" else None,
        )
        for match in _FENCE.finditer(text)
    ]


def read_steps(block: Block) -> list[Step]:
    steps: list[tuple[int, list[str], list[str]]] = []
    is_continued = False
    for number, line in enumerate(block.text.splitlines(), block.line):
        if is_continued or (steps and not steps[-1][2] and line.startswith("> ")):
            steps[-1][1].append(line.removeprefix("> "))
        elif line.startswith("$ "):
            steps.append((number, [line[2:]], []))
        else:
            assert steps, f"line {number}: a console block begins with a command: `$ …`"
            steps[-1][2].append(line)
            continue
        is_continued = line.endswith("\\")
    found = [Step(number, "\n".join(command), tuple(output)) for number, command, output in steps]
    return [
        Step(step.line, step.command, step.output, _may_fail(step, following))
        for step, following in pairwise([*found, None])
        if step is not None
    ]


def _may_fail(step: Step | None, following: Step | None) -> bool:
    prints_status = following is not None and "$?" in following.command
    return prints_status or (step is not None and any(line.startswith("qd: ") for line in step.output))


def run_page(page: Path, server: ServerProcess, directory: Path) -> list[str]:
    """Run the blocks of the page. Return one description per step that does not do what the page shows."""
    steps: list[Step] = []
    for block in read_blocks(page):
        if block.not_run_reason is not None:
            continue
        if block.file is not None:
            # The steps before this block must not see the file, and a page may show a second version of it.
            steps.append(Step(block.line, _write_command(block), ()))
        elif block.language == "console":
            steps += read_steps(block)
    results = _run(steps, server, directory)
    return [problem for step, result in zip(steps, results, strict=True) if (problem := _problem(step, result))]


def _write_command(block: Block) -> str:
    return f"cat > {block.file} <<'END_OF_FILE'\n{block.text}END_OF_FILE"


def _run(steps: Sequence[Step], server: ServerProcess, directory: Path) -> list[Result]:
    (directory / "examples").symlink_to(ROOT / "examples")
    programs = Path(sys.executable).parent
    environment = {
        **minimal_environment(),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(directory),
        "QD_DATA": str(server.launch.data),
    }
    script, output = directory / "script.sh", directory / "output"
    script.write_text("\n".join(_script_lines(steps, server.url)), encoding="utf-8")
    with output.open("wb") as stream:
        process = subprocess.Popen(
            ["bash", str(script)],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
            preexec_fn=signal_on_parent_death(signal.SIGKILL),
        )
        try:
            process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # the command that did not end has no result
        finally:
            # Also what the examples started in the background. There may be nothing left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return _read_results(output.read_text(encoding="utf-8", errors="replace").replace(server.url, DEFAULT_URL), steps)


def _script_lines(steps: Sequence[Step], url: str) -> Iterator[str]:
    for number, step in enumerate(steps):
        # The markers keep `$?`, so that a following command can print it.
        yield f"__status=$?; printf '\\n{_MARKER}begin {number}\\n'; (exit $__status)"
        yield step.command.replace(DEFAULT_URL, url)
        yield f"__status=$?; printf '\\n{_MARKER}end {number} %s\\n' $__status; (exit $__status)"


def _read_results(text: str, steps: Sequence[Step]) -> list[Result]:
    results = []
    for number, step in enumerate(steps):
        match = re.search(rf"{_MARKER}begin {number}\n(.*?)\n?{_MARKER}end {number} (\d+)\n", text, re.S)
        if match is None:
            rest = text.rpartition(f"{_MARKER}begin {number}\n")[2]
            raise AssertionError(f"line {step.line}: `{step.command}` did not end within {LIMIT_SECONDS:g} s:\n{rest}")
        results.append(Result(int(match[2]), match[1]))
    return results


def _problem(step: Step, result: Result) -> str | None:
    if result.status and not step.may_fail:
        return f"line {step.line}: `{step.command}` exits with {result.status}:\n{result.output}"
    if step.output and not re.fullmatch(_pattern(step.output), _trimmed(result.output.splitlines())):
        return f"line {step.line}: `{step.command}` prints something else:\n{result.output}"
    return None


def _pattern(expected: Sequence[str]) -> str:
    lines = _trimmed(expected).splitlines()
    parts = [r"(?:.*\n)*?" if line == "…" else f"{re.escape(line).replace('…', '.*')}\n" for line in lines]
    return "".join(parts)


def _trimmed(lines: Sequence[str]) -> str:
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    return text + "\n" if text else ""
