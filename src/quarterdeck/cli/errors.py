"""Error output: text for people, a JSON document with --json, and an exit code."""

from __future__ import annotations

import json
import sys

from quarterdeck.cli.output import cell
from quarterdeck.client.problems import problem_to_document
from quarterdeck.core.errors import EXIT_USAGE, Fault, Problem, Refusal


class UsageError(Refusal, status=400, title="Usage", exit_code=EXIT_USAGE):
    """The command line is invalid."""


def usage_error(detail: str) -> UsageError:
    return UsageError("usage", detail)


class SystemFault(Fault, status=500, title="Operating system error"):
    """The operating system reported an error, such as missing permissions or a full disk."""


def report_problem(problem: Problem, *, as_json: bool, prefix: str = "qd") -> int:
    """Write the problem to stderr and return its exit code."""
    text = json.dumps(problem_to_document(problem), ensure_ascii=False) if as_json else format_problem(problem, prefix)
    sys.stderr.write(f"{text}\n")
    return problem.exit_code


def format_problem(problem: Problem, prefix: str = "qd") -> str:
    """Format the problem as `qd: …`, followed by an indented line for each detail.

    For a limit, the details are its name and value, how much of it is used, and what frees it. For a delegation that is
    too broad, they are the parts that exceed the authority.
    """
    lines = [f"{prefix}: {problem.detail}"]
    members = problem.members
    exceeds = members.get("exceeds")
    if isinstance(exceeds, list):
        lines += [f"    {cell(part)}" for part in exceeds]
    if "bound" in members:
        line = f"    {cell(members['bound'])}: limit {cell(members.get('limit'))}, used {cell(members.get('used'))}"
        frees = members.get("frees")
        lines.append(f"{line}; what frees it: {cell(frees)}" if frees else line)
    elif "frees" in members:
        lines.append(f"    what frees it: {cell(members['frees'])}")
    elif "field" in members:
        lines.append(f"    field: {cell(members['field'])}")
    elif problem.retry_after is not None:
        lines.append(f"    retry after {problem.retry_after} s")
    return "\n".join(lines)


def problem_from_os_error(error: OSError) -> Problem:
    location = f"{error.filename}: " if error.filename else ""
    return SystemFault("system_refused", f"{location}{error.strerror or error}.")
