"""Commands that need the server's code: sweep, token, db, audit, check, config show. They run `python -m quarterdeck`.

That program replaces the `qd` process, so signals, exit code and terminal belong to it, and `qd` imports no server
modules. It gets the parsed options in their long form.
`config alerts`, `version` and `completion` need no server code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from quarterdeck import __version__
from quarterdeck.cli.command_table import (
    DURATION,
    FILE,
    GLOBAL_OPTIONS,
    ID,
    NUMBER,
    ROLE,
    TEXT,
    Argument,
    Group,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.client.server_package import require_server

ROOT = Group("")
DB = Group("db", "Manage the database: schema and backups.")
AUDIT = Group("audit", "Verify the event log against its seals.")
CONFIG = Group("config", "Print the server's settings, or alert rules.")
GROUPS = (ROOT, DB, AUDIT, CONFIG)


DATABASE_OPTION = Option("--database", "Database URL [default: SQLite in the data directory].", TEXT)
OWN_VARIABLES_OPTION = Option("--only-own-variables", "Ignore variables without QD_, such as DATABASE_URL and PORT.")


@ROOT.command(
    "token",
    "Issue a bearer token with the local key and print it.",
    Option("--app", "Application that the token acts for [default: local].", ID),
    Option("--scope", "Scope to grant; repeatable [default: agent:lifecycle].", TEXT, many=True),
    Option("--ttl", "Lifetime, such as 90s, 15m or 2h [default: 1h].", DURATION),
    Option("--session", "Session that the token acts for. The token is valid only while the session is live.", ID),
    Option("--agent", "Agent that the token acts for. The token cannot act for another agent.", ID),
    Option("--role", "Role claim. A role assigned with `qd role set` takes precedence.", ROLE),
)
def token(context: Context) -> int:
    zone = context.text("zone") or context.environ.get("QD_ZONE")
    return exec_server_command(context, [] if zone is None else [f"--zone={zone}"])


def exec_server_command(context: Context, extra_args: Sequence[str] = ()) -> int:
    """Replace this process with `python -m quarterdeck`. Does not return."""
    command = context.parsed.command
    require_server(f"`qd {' '.join(command.words)}`")
    # The server program accepts only these two global options.
    global_options = [option for option in GLOBAL_OPTIONS if option.key in ("json", "data")]
    args = [
        *command.words,
        *(_escape_leading_dash(context.required_text(argument.key)) for argument in command.arguments),
        *extra_args,
    ]
    for option in (*command.options, *global_options):
        args += format_option(option, context.parsed.values[option.key])
    sys.stdout.flush()
    # -P: a directory named quarterdeck in the working directory must not be run instead of the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "quarterdeck", *args])  # noqa: S606 - runs our own package


def _escape_leading_dash(argument: str) -> str:
    """Prefix a file name that starts with a dash, so that it is not parsed as an option."""
    return f"./{argument}" if argument.startswith("-") else argument


def format_option(option: Option, value: object) -> list[str]:
    """Format the option as command line arguments: none if it was not given."""
    if value is None or value is False:
        return []
    if value is True:
        return [option.name]
    values = value if isinstance(value, tuple) else (value,)
    # One argument with an equals sign, so that a value that starts with a dash is not parsed as an option.
    return [f"{option.name}={item}" for item in values]


ROOT.command(
    "sweep",
    "Run the sweeps of a PostgreSQL database without serving requests.",
    Option("--once", "Run each sweep once, print what it changed, and exit."),
    Option("--only", "Run only this sweep; repeatable.", TEXT, many=True),
    Option("--list", "Print the sweeps and their intervals, and exit."),
    Option("--metrics-port", "Port that serves /health, /ready and /metrics [default: none].", NUMBER),
    DATABASE_OPTION,
    OWN_VARIABLES_OPTION,
    description=(
        "Servers run the sweeps themselves unless QD_SWEEPS=false. Any number of sweep processes may run "
        "alongside any number of servers. SIGTERM and SIGINT stop the process. With --once it exits 1 if a "
        "sweep failed."
    ),
)(exec_server_command)
DB.command(
    "init",
    "Create or upgrade the schema.",
    DATABASE_OPTION,
    OWN_VARIABLES_OPTION,
    description=(
        "Prints whether it created the schema, upgraded it, or found it up to date. Refuses a database of a "
        "newer release or with another program's tables."
    ),
)(exec_server_command)
DB.command("upgrade", "Upgrade the schema.", DATABASE_OPTION, OWN_VARIABLES_OPTION)(exec_server_command)
DB.command("status", "Compare the schema with the one that this release needs.", DATABASE_OPTION, OWN_VARIABLES_OPTION)(
    exec_server_command
)
DB.command(
    "backup",
    "Back up a SQLite database, even while its server is running.",
    Argument("file", "FILE", FILE),
    DATABASE_OPTION,
    OWN_VARIABLES_OPTION,
    description=(
        "The backup is consistent. FILE appears only when the backup is complete; an existing file is never "
        "overwritten. The backup does not contain the signing key. For PostgreSQL, use pg_dump."
    ),
)(exec_server_command)
AUDIT.command(
    "verify",
    "Verify the event log against its seals.",
    Option("--anchor", "Seal stored earlier, or a file with one seal per line; repeatable.", TEXT, many=True),
    Option("--key", "Public key to trust, PEM or JWKS; repeatable [default: data directory's key].", FILE, many=True),
    DATABASE_OPTION,
    OWN_VARIABLES_OPTION,
    description=(
        "Reads the database directly and needs no server. If the log was altered, prints the first alteration "
        "and exits 1. Without --anchor it cannot detect that the newest seals were deleted with their events."
    ),
)(exec_server_command)
AUDIT.command(
    "anchor", "Print the newest seal, so that you can store it elsewhere.", DATABASE_OPTION, OWN_VARIABLES_OPTION
)(exec_server_command)
ROOT.command(
    "check",
    "Check that counters, trees and the event log agree.",
    Option("--history", "Calls recorded by clients, as JSON Lines; repeatable.", FILE, many=True),
    DATABASE_OPTION,
    OWN_VARIABLES_OPTION,
    description=(
        "Reads one snapshot of the database directly and needs no server. If there are differences, prints "
        "all of them and exits 1. With --history, also checks the recorded calls of clients against the "
        "guarantees."
    ),
)(exec_server_command)
CONFIG.command("show", "Print all settings and their sources.", DATABASE_OPTION, OWN_VARIABLES_OPTION)(
    exec_server_command
)


@CONFIG.command("alerts", "Print alert rules for Prometheus.")
def alerts(context: Context) -> None:
    # The rules are part of the package, because they name the metrics of this release.
    from importlib import resources  # imported here: other commands do not need it

    rules = resources.files("quarterdeck").joinpath("ops", "alerts.yml").read_text(encoding="utf-8")
    context.show({"rules": rules}, lambda _: rules.rstrip("\n"))


# -- this program ------------------------------------------------------------------------------------------------------

_COMPLETION_HELP = """\b
bash: echo 'eval "$(qd completion bash)"' >> ~/.bashrc
zsh:  echo 'eval "$(qd completion zsh)"' >> ~/.zshrc
fish: qd completion fish > ~/.config/fish/completions/qd.fish"""


@ROOT.command("version", "Print the version.")
def version(context: Context) -> None:
    context.show({"version": __version__}, lambda document: f"quarterdeck {document['version']}")


@ROOT.command(
    "completion",
    "Print the completion script for a shell.",
    Argument("shell", "SHELL", choice("bash", "zsh", "fish")),
    description=_COMPLETION_HELP,
)
def completion(context: Context) -> None:
    from quarterdeck.cli.click_parser import completion_script

    script = completion_script(context.required_text("shell"))
    context.show({"script": script}, lambda document: script)
