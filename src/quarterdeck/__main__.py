"""`python -m quarterdeck`: the commands that need the server's code. `qd` executes this module to run them.

up                 run a server until it receives a signal
sweep              run the sweeps without serving requests
db init            create or upgrade the schema; refuses a database with another program's tables
db upgrade|status  upgrade the schema, or print its revision
db backup FILE     copy a SQLite database
audit verify       verify the event log against its seals
audit anchor       print the newest seal, so that it can be stored elsewhere
check              check that counters, session trees, event log and client histories agree
config show        print every setting and its source
token              issue a bearer token with the local key and print it
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from quarterdeck.client.data_dir import resolve_data_dir
from quarterdeck.core.caller import Role
from quarterdeck.core.errors import EXIT_FAILED, Problem
from quarterdeck.engine.settings import SettingsError
from quarterdeck.http.auth import KeyFileError
from quarterdeck.settings import FLAGS, Settings, environment, load_settings, mask
from quarterdeck.store.interface import StoreError

EXIT_INTERRUPTED = 130
"""The shell's exit code for a program ended by SIGINT."""


def main(arguments: list[str] | None = None) -> int:
    args = _parser().parse_args(arguments)
    # Only their owner may read files in the data directory, whatever the mode of the directory.
    os.umask(0o077)
    try:
        settings = _settings(args)
        return int(args.run(args, settings))
    except (SettingsError, KeyFileError, StoreError, Problem, OSError) as error:
        detail = str(getattr(error, "detail", error))
        code = str(getattr(error, "code", "not_possible"))
        output = msgspec.json.encode({"error": code, "detail": detail}).decode() if args.json else f"qd: {detail}"
        sys.stderr.write(output + "\n")
        return int(getattr(error, "exit_code", EXIT_FAILED))
    except KeyboardInterrupt:
        # The command had not installed its own signal handler yet, so there is nothing to clean up.
        return EXIT_INTERRUPTED


def _settings(args: argparse.Namespace) -> Settings:
    given = {name: getattr(args, flag.removeprefix("--"), None) for name, flag in FLAGS.items()}
    flags = {name: value for name, value in given.items() if value is not None}
    data = Path(resolve_data_dir(args.data, environment()).path)
    return load_settings(data, flags, use_shared_variables=not (args.auto_started or args.only_own_variables))


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--data")
    common.add_argument("--database")
    common.add_argument("--json", action="store_true")
    common.add_argument("--auto-started", action="store_true")
    common.add_argument("--lock-is-held", action="store_true")
    common.add_argument("--only-own-variables", action="store_true")
    parser = argparse.ArgumentParser("qd")
    verbs = parser.add_subparsers(required=True)
    up = verbs.add_parser("up", parents=[common])
    up.add_argument("--host")
    up.add_argument("--port")
    up.add_argument("--migrate", action="store_true")
    up.add_argument("--ready-fd", type=int)
    up.set_defaults(run=_up)
    for noun, subcommands in (
        ("db", {"init": _db_init, "upgrade": _db_upgrade, "status": _db_status, "backup": _db_backup}),
        ("audit", {"verify": _audit_verify, "anchor": _audit_anchor}),
        ("config", {"show": _config_show}),
    ):
        group = verbs.add_parser(noun).add_subparsers(required=True)
        for name, run in subcommands.items():
            subcommand = group.add_parser(name, parents=[common])
            subcommand.set_defaults(run=run)
            if run is _db_backup:
                subcommand.add_argument("file", type=Path)
            if run is _audit_verify:
                subcommand.add_argument("--anchor", action="append", default=[])
                subcommand.add_argument("--key", action="append", default=[])
    sweep = verbs.add_parser("sweep", parents=[common])
    sweep.add_argument("--once", action="store_true")
    sweep.add_argument("--list", action="store_true")
    sweep.add_argument("--only", action="append", default=[])
    sweep.add_argument("--metrics-port", type=int)
    sweep.set_defaults(run=_sweep)
    check = verbs.add_parser("check", parents=[common])
    check.add_argument("--history", type=Path, action="append", default=[])
    check.set_defaults(run=_check)
    token = verbs.add_parser("token", parents=[common])
    token.add_argument("--zone", default="default")
    token.add_argument("--app", default="local")
    token.add_argument("--scope", action="append")
    token.add_argument("--ttl", type=int, default=3600)
    token.add_argument("--session")
    token.add_argument("--agent")
    token.add_argument("--role", type=Role, choices=[*Role], metavar="ROLE")
    token.set_defaults(run=_token)
    return parser


def _up(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.server_process import ServerProcess

    return ServerProcess(settings, migrate=args.migrate, ready_fd=args.ready_fd).run_until_stopped()


def _sweep(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.sweeper_process import SweeperProcess, SweepOptions

    sweeper = SweeperProcess(settings, SweepOptions(args.only, args.metrics_port, args.json))
    return sweeper.print_sweeps() if args.list else sweeper.run_once() if args.once else sweeper.run_until_stopped()


def _db_init(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    with _exclusive_lock(args, settings):
        before, after = migrate.initialize(settings.database_url)
    masked_url = mask(settings.database_url)
    if before is None:
        status, message = "created", f"created {masked_url} at revision {after}"
    elif before != after:
        status, message = "upgraded", f"upgraded {masked_url} from {before} to {after}"
    else:
        status, message = "already at head", f"already at head ({after})"
    _print(args, {"database": masked_url, "done": status, "before": before, "revision": after}, message)
    return 0


def _db_upgrade(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    with _exclusive_lock(args, settings):
        before = migrate.current_revision(settings.database_url)
        after = migrate.upgrade(settings.database_url)
    message = f"upgraded from {before or 'nothing'} to {after}" if before != after else f"already at {after}"
    _print(args, {"database": mask(settings.database_url), "before": before, "revision": after}, message)
    return 0


@contextlib.contextmanager
def _exclusive_lock(args: argparse.Namespace, settings: Settings) -> Iterator[None]:
    """Hold the server's lock while a SQLite file is being migrated. On PostgreSQL, an advisory lock is used instead."""
    from quarterdeck.server_process import take_lock
    from quarterdeck.store.migrate import sqlite_path

    if args.lock_is_held or not sqlite_path(settings.database_url):
        yield
        return
    settings.data.mkdir(parents=True, exist_ok=True)
    lock_fd = take_lock(settings.data / "server.lock")
    try:
        yield
    finally:
        os.close(lock_fd)


def _db_status(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    current = migrate.current_revision(settings.database_url)
    mismatch = migrate.schema_mismatch(current)
    document = {"database": mask(settings.database_url), "revision": current, "known": migrate.revisions()}
    _print(args, {**document, "complaint": mismatch}, mismatch or f"up to date, at revision {current}")
    return 0 if mismatch is None else EXIT_FAILED


def _db_backup(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import backup

    result = backup.create_backup(settings.database_url, args.file)
    _print(args, msgspec.to_builtins(result), result.text())
    return 0


def _audit_verify(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import audit

    trusted = audit.select_trusted_keys(args.key, settings.signing_key_path)
    verdict = audit.verify_log(settings.database_url, trusted, audit.parse_anchors(args.anchor))
    _print(args, verdict.to_dict(), verdict.text())
    return 0 if verdict.is_proven else EXIT_FAILED


def _audit_anchor(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import audit

    anchor = audit.newest_anchor(settings.database_url)
    _print(args, {"anchor": anchor}, anchor)
    return 0


def _check(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import consistency

    report = consistency.check_database(settings.database_url, args.history)
    _print(args, report.to_dict(), report.text())
    return 0 if report.is_consistent else EXIT_FAILED


def _config_show(args: argparse.Namespace, settings: Settings) -> int:
    rows = [(setting.name, setting.display_value(), setting.source) for setting in settings.values.values()]
    if args.json:
        document = {name: {"value": value, "source": source} for name, value, source in rows}
        _print(args, document, "")
        return 0
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, value, source in rows:
        sys.stdout.write(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}\n")
    return 0


def _token(args: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.core.caller import COORDINATOR_ADMIN
    from quarterdeck.http.auth import AuthSettings, Grant
    from quarterdeck.server_process import open_issuer

    lifecycle_scope = settings.section(AuthSettings).lifecycle_scope
    # A token for an agent or with a role does not get `coordinator.admin` by default.
    has_agent_or_role = args.agent is not None or args.role is not None
    is_admin = args.app == "local" and not has_agent_or_role
    default_scopes = (lifecycle_scope, COORDINATOR_ADMIN) if is_admin else (lifecycle_scope,)
    scopes = tuple(args.scope) if args.scope else default_scopes
    grant = Grant(
        zone_id=args.zone,
        client_id=args.app,
        subject=args.app if args.agent is None else f"agent:{args.agent}",
        sid=args.session or args.app,
        session_id=args.session,
        agent_id=args.agent,
        role=args.role,
        scopes=scopes,
    )
    token = open_issuer(settings).mint(grant, args.ttl)
    _print(args, {"token": token, "expires_in": args.ttl, "scope": " ".join(scopes)}, token)
    return 0


def _print(args: argparse.Namespace, document: object, text: str) -> None:
    sys.stdout.write((msgspec.json.encode(document).decode() if args.json else text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
