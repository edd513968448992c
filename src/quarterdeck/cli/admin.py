"""Commands that need the server's own code: they are handed over to `python -m quarterdeck`.

The process is replaced, not wrapped: signals, exit code and terminal are the server's own, and `qd` stays
free of its imports. What is handed over is what both parsers understood, spelled plainly.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from quarterdeck.cli.command_table import (
    DURATION,
    FILE,
    GLOBAL_OPTIONS,
    ID,
    NUMBER,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    uppercase_choice,
)
from quarterdeck.cli.context import Context


def build_command_table() -> CommandTable:
    database_options = (DATABASE_OPTION, OWN_VARIABLES_OPTION)
    return CommandTable(
        (
            Command(
                ("sweep",),
                "Sweep a PostgreSQL database, and serve nobody.",
                exec_server_command,
                options=(*_SWEEP_OPTIONS, *database_options),
                description=_SWEEP_HELP,
            ),
            Command(("token",), "Print a bearer token of the local issuer.", token, options=_TOKEN_OPTIONS),
            Command(
                ("db", "init"),
                "Create the schema, or bring it up to date.",
                exec_server_command,
                options=database_options,
                description=_DB_INIT_HELP,
            ),
            Command(("db", "upgrade"), "Bring the schema up to date.", exec_server_command, options=database_options),
            Command(
                ("db", "status"), "Compare the schema with this release.", exec_server_command, options=database_options
            ),
            Command(
                ("db", "backup"),
                "Copy a SQLite database while its server works.",
                exec_server_command,
                (Argument("file", "FILE", FILE),),
                database_options,
                _DB_BACKUP_HELP,
            ),
            Command(
                ("audit", "verify"),
                "Prove the log.",
                exec_server_command,
                options=(*_AUDIT_VERIFY_OPTIONS, *database_options),
                description=_AUDIT_VERIFY_HELP,
            ),
            Command(
                ("audit", "anchor"),
                "Print the newest seal, to note it elsewhere.",
                exec_server_command,
                options=database_options,
            ),
            Command(
                ("check",),
                "Compare counters, trees and log.",
                exec_server_command,
                options=(_HISTORY_OPTION, *database_options),
                description=_CHECK_HELP,
            ),
            Command(
                ("config", "show"), "Print every setting and its source.", exec_server_command, options=database_options
            ),
            Command(("config", "alerts"), "Print alert rules for Prometheus.", alerts),
        ),
        {
            "db": "The database: its schema, and copies of it.",
            "audit": "The log, proved by its seals.",
            "config": "The settings a server would start with, and rules for whoever watches it.",
        },
    )


_SWEEP_OPTIONS = (
    Option("--once", "Make one pass of each sweep, print what it moved, and end."),
    Option("--only", "Only this sweep; may be repeated.", TEXT, many=True),
    Option("--list", "Print the sweeps and how often each is made, and end."),
    Option("--metrics-port", "Answer /health, /ready and /metrics there [default: nowhere].", NUMBER),
)
_SWEEP_HELP = """Servers sweep by themselves unless they are told QD_SWEEPS=false. Any number of daemons may run beside
any number of servers. SIGTERM and SIGINT end it. With --once it exits with 1 if a pass failed."""
_ROLE_TYPE = uppercase_choice("OWNER", "ADMIN", "MEMBER", "AGENT")
_TOKEN_OPTIONS = (
    Option("--app", "The application it speaks for.", ID),
    Option("--scope", "A scope it carries; may be repeated.", TEXT, many=True),
    Option("--ttl", "How long it is good: 90, 15m, 2h.", DURATION),
    Option("--session", "The session it speaks for; it ends with that session.", ID),
    Option("--agent", "The agent it speaks for, and the only one it acts as.", ID),
    Option("--role", "What its bearer is in the workspace, unless a member's row says otherwise.", _ROLE_TYPE),
)
_AUDIT_VERIFY_OPTIONS = (
    Option("--anchor", "A seal noted earlier, or a file of such lines; may be repeated.", TEXT, many=True),
    Option("--key", "A key that may have signed: PEM or JWKS; may be repeated.", FILE, many=True),
)
_AUDIT_VERIFY_HELP = """Reads the database itself and asks no server. Names the first row that is not what it was, and exits
with 1. Without --anchor it says what it cannot prove. Without --key it trusts the key of the data directory."""
_CHECK_HELP = """Reads the database itself, as of one moment, and asks no server. Prints what differs, and exits with 1;
with 0, all is well. With --history, also whether every promise was kept to the clients who wrote it."""
_HISTORY_OPTION = Option(
    "--history", "What clients wrote down of their calls, as JSON Lines; may be repeated.", FILE, many=True
)
_DB_INIT_HELP = """Says whether it created the schema, upgraded it, or found it at head. Refuses a database that a newer release
has been at, and one that holds tables of something else."""
_DB_BACKUP_HELP = """The copy is consistent, whole when it has its name, and overwrites nothing. The signing key is not in it.
On PostgreSQL, pg_dump does this."""
DATABASE_OPTION = Option("--database", "The database's URL [default: SQLite in the data directory].", TEXT)
OWN_VARIABLES_OPTION = Option("--only-own-variables", "Heed QD_ variables only, not DATABASE_URL, PORT and the like.")


def token(context: Context) -> int:
    zone = context.text("zone") or context.environ.get("QD_ZONE")
    return exec_server_command(context, [] if zone is None else [f"--zone={zone}"])


def alerts(context: Context) -> int:
    """Of this release: they name the figures that its server exports."""
    from importlib import resources  # costs every command that does not need it

    rules = resources.files("quarterdeck").joinpath("ops", "alerts.yml").read_text(encoding="utf-8")
    context.show({"rules": rules}, lambda _: rules.rstrip("\n"))
    return 0


def exec_server_command(context: Context, extra_args: Sequence[str] = ()) -> int:
    """Does not return: this process becomes the server's."""
    command = context.parsed.command
    # Of the options that every command has, these two mean something there.
    global_options = [option for option in GLOBAL_OPTIONS if option.key in ("json", "data")]
    args = [
        *command.words,
        *(_escape_leading_dash(context.required_text(argument.key)) for argument in command.arguments),
        *extra_args,
    ]
    for option in (*command.options, *global_options):
        args += format_option(option, context.parsed.values[option.key])
    sys.stdout.flush()
    # -P: a directory named quarterdeck where the user happens to stand must not run in place of the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "quarterdeck", *args])  # noqa: S606 - it is ourselves


def _escape_leading_dash(argument: str) -> str:
    """A file whose name begins with a dash is no option."""
    return f"./{argument}" if argument.startswith("-") else argument


def format_option(option: Option, value: object) -> list[str]:
    """An option as one would type it; nothing where it was not said."""
    if value is None or value is False:
        return []
    if value is True:
        return [option.name]
    values = value if isinstance(value, tuple) else (value,)
    # One word each: a value that begins with a dash cannot be taken for an option.
    return [f"{option.name}={item}" for item in values]
