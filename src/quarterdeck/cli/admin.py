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
    GLOBALS,
    ID,
    NUMBER,
    TEXT,
    Argument,
    Command,
    Noun,
    Option,
    any_case,
)
from quarterdeck.cli.context import Context


def noun() -> Noun:
    database = (DATABASE, PLAIN_ENVIRONMENT)
    return Noun(
        (
            Command(
                ("sweep",),
                "Sweep a PostgreSQL database, and serve nobody.",
                hand_over,
                options=(*_SWEEP, *database),
                description=_SWEEPING,
            ),
            Command(("token",), "Print a bearer token of the local issuer.", token, options=_TOKEN),
            Command(
                ("db", "init"),
                "Create the schema, or bring it up to date.",
                hand_over,
                options=database,
                description=_INIT,
            ),
            Command(("db", "upgrade"), "Bring the schema up to date.", hand_over, options=database),
            Command(("db", "status"), "Compare the schema with this release.", hand_over, options=database),
            Command(
                ("db", "backup"),
                "Copy a SQLite database while its server works.",
                hand_over,
                (Argument("file", "FILE", FILE),),
                database,
                _BACKUP,
            ),
            Command(
                ("audit", "verify"), "Prove the log.", hand_over, options=(*_AUDIT, *database), description=_VERIFY
            ),
            Command(("audit", "anchor"), "Print the newest seal, to note it elsewhere.", hand_over, options=database),
            Command(
                ("check",),
                "Compare counters, trees and log.",
                hand_over,
                options=(_HISTORY, *database),
                description=_CHECK,
            ),
            Command(("config", "show"), "Print every setting and its source.", hand_over, options=database),
            Command(("config", "alerts"), "Print alert rules for Prometheus.", alerts),
        ),
        {
            "db": "The database: its schema, and copies of it.",
            "audit": "The log, proved by its seals.",
            "config": "The settings a server would start with, and rules for whoever watches it.",
        },
    )


_SWEEP = (
    Option("--once", "Make one pass of each sweep, print what it moved, and end."),
    Option("--only", "Only this sweep; may be repeated.", TEXT, many=True),
    Option("--list", "Print the sweeps and how often each is made, and end."),
    Option("--metrics-port", "Answer /health, /ready and /metrics there [default: nowhere].", NUMBER),
)
_SWEEPING = """Servers sweep by themselves unless they are told QD_SWEEPS=false. Any number of daemons may run beside
any number of servers. SIGTERM and SIGINT end it. With --once it exits with 1 if a pass failed."""
_ROLE = any_case("OWNER", "ADMIN", "MEMBER", "AGENT")
_TOKEN = (
    Option("--app", "The application it speaks for.", ID),
    Option("--scope", "A scope it carries; may be repeated.", TEXT, many=True),
    Option("--ttl", "How long it is good: 90, 15m, 2h.", DURATION),
    Option("--session", "The session it speaks for; it ends with that session.", ID),
    Option("--agent", "The agent it speaks for, and the only one it acts as.", ID),
    Option("--role", "What its bearer is in the workspace, unless a member's row says otherwise.", _ROLE),
)
_AUDIT = (
    Option("--anchor", "A seal noted earlier, or a file of such lines; may be repeated.", TEXT, many=True),
    Option("--key", "A key that may have signed: PEM or JWKS; may be repeated.", FILE, many=True),
)
_VERIFY = """Reads the database itself and asks no server. Names the first row that is not what it was, and exits
with 1. Without --anchor it says what it cannot prove. Without --key it trusts the key of the data directory."""
_CHECK = """Reads the database itself, as of one moment, and asks no server. Prints what differs, and exits with 1;
with 0, all is well. With --history, also whether every promise was kept to the clients who wrote it."""
_HISTORY = Option(
    "--history", "What clients wrote down of their calls, as JSON Lines; may be repeated.", FILE, many=True
)
_INIT = """Says whether it created the schema, upgraded it, or found it at head. Refuses a database that a newer release
has been at, and one that holds tables of something else."""
_BACKUP = """The copy is consistent, whole when it has its name, and overwrites nothing. The signing key is not in it.
On PostgreSQL, pg_dump does this."""
DATABASE = Option("--database", "The database's URL [default: SQLite in the data directory].", TEXT)
PLAIN_ENVIRONMENT = Option("--only-own-variables", "Heed QD_ variables only, not DATABASE_URL, PORT and the like.")


def token(context: Context) -> int:
    zone = context.text("zone") or context.environ.get("QD_ZONE")
    return hand_over(context, [] if zone is None else [f"--zone={zone}"])


def alerts(context: Context) -> int:
    """Of this release: they name the figures that its server exports."""
    from importlib import resources  # costs every command that does not need it

    rules = resources.files("quarterdeck").joinpath("ops", "alerts.yml").read_text(encoding="utf-8")
    context.show({"rules": rules}, lambda _: rules.rstrip("\n"))
    return 0


def hand_over(context: Context, more: Sequence[str] = ()) -> int:
    """Does not return: this process becomes the server's."""
    command = context.ask.command
    # Of the options that every command has, these two mean something there.
    known = [option for option in GLOBALS if option.key in ("json", "data")]
    words = [*command.words, *(_plain(context.given(argument.key)) for argument in command.arguments), *more]
    for option in (*command.options, *known):
        words += spelled(option, context.ask.values[option.key])
    sys.stdout.flush()
    # -P: a directory named quarterdeck where the user happens to stand must not run in place of the package.
    os.execv(sys.executable, [sys.executable, "-P", "-m", "quarterdeck", *words])  # noqa: S606 - it is ourselves


def _plain(argument: str) -> str:
    """A file whose name begins with a dash is no option."""
    return f"./{argument}" if argument.startswith("-") else argument


def spelled(option: Option, value: object) -> list[str]:
    """An option as one would type it; nothing where it was not said."""
    if value is None or value is False:
        return []
    if value is True:
        return [option.name]
    told = value if isinstance(value, tuple) else (value,)
    # One word each: a value that begins with a dash cannot be taken for an option.
    return [f"{option.name}={one}" for one in told]
