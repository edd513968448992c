"""`python -m quarterdeck`: what needs the server's own code. The `qd` command hands over to this.

up                 serve, until told to stop
sweep              make the passes of a server without serving
db init            the schema, made or brought up to date; never among the tables of something else
db upgrade|status  the schema
db backup FILE     a copy of a SQLite database
audit verify       the log, proved by its seals
audit anchor       the newest seal, to be noted elsewhere
check              counters, trees and log against each other; clients' histories against all of them
config show        every setting and where it came from
token              a bearer token of the local issuer
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from quarterdeck.client.data_dir import place_of
from quarterdeck.core.caller import Role
from quarterdeck.core.errors import EXIT_FAILED, Problem
from quarterdeck.http.auth import KeyFileError
from quarterdeck.settings import SHARED_NAMES, Settings, SettingsError, environment, load, mask
from quarterdeck.store.interface import StoreError

EXIT_INTERRUPTED = 130
"""As a shell has it for a program that SIGINT ended."""


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    # What lies in a data directory is its owner's alone, whoever made the directory.
    os.umask(0o077)
    try:
        settings = _settings(asked)
        return int(asked.run(asked, settings))
    except (SettingsError, KeyFileError, StoreError, Problem, OSError) as refusal:
        detail = str(getattr(refusal, "detail", refusal))
        code = str(getattr(refusal, "code", "not_possible"))
        told = msgspec.json.encode({"error": code, "detail": detail}).decode() if asked.json else f"qd: {detail}"
        sys.stderr.write(told + "\n")
        return int(getattr(refusal, "exit_code", EXIT_FAILED))
    except KeyboardInterrupt:
        # Before whoever runs had taken the signal for itself, and so before anything was begun that needs an end.
        return EXIT_INTERRUPTED


def _settings(asked: argparse.Namespace) -> Settings:
    flags = {name: value for name, value in vars(asked).items() if name in _FLAGS and value is not None}
    if asked.database is not None:
        flags["database_url"] = asked.database
    data = Path(place_of(asked.data, environment()).path)
    return load(data, flags, shared=not (asked.auto_started or asked.only_own_variables))


_FLAGS = ("host", "port")


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
    for noun, steps in (
        ("db", {"init": _db_init, "upgrade": _db_upgrade, "status": _db_status, "backup": _db_backup}),
        ("audit", {"verify": _audit_verify, "anchor": _audit_anchor}),
        ("config", {"show": _config_show}),
    ):
        group = verbs.add_parser(noun).add_subparsers(required=True)
        for name, run in steps.items():
            step = group.add_parser(name, parents=[common])
            step.set_defaults(run=run)
            if run is _db_backup:
                step.add_argument("file", type=Path)
            if run is _audit_verify:
                step.add_argument("--anchor", action="append", default=[])
                step.add_argument("--key", action="append", default=[])
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


def _up(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.server_process import Running

    return Running(settings, migrate=asked.migrate, ready_fd=asked.ready_fd).until_stopped()


def _sweep(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.sweeper_process import Sweeping, Wanted

    daemon = Sweeping(settings, Wanted(asked.only, asked.metrics_port, asked.json))
    return daemon.tell() if asked.list else daemon.once() if asked.once else daemon.until_stopped()


def _db_init(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    with _alone(asked, settings):
        before, after = migrate.initialize(settings.database_url)
    shown = mask(settings.database_url)
    if before is None:
        done, told = "created", f"created {shown} at revision {after}"
    elif before != after:
        done, told = "upgraded", f"upgraded {shown} from {before} to {after}"
    else:
        done, told = "already at head", f"already at head ({after})"
    _show(asked, {"database": shown, "done": done, "before": before, "revision": after}, told)
    return 0


def _db_upgrade(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    with _alone(asked, settings):
        before = migrate.current_revision(settings.database_url)
        after = migrate.upgrade(settings.database_url)
    moved = f"upgraded from {before or 'nothing'} to {after}" if before != after else f"already at {after}"
    _show(asked, {"database": mask(settings.database_url), "before": before, "revision": after}, moved)
    return 0


@contextlib.contextmanager
def _alone(asked: argparse.Namespace, settings: Settings) -> Iterator[None]:
    """A SQLite file is migrated only while no server has it; PostgreSQL has a lock of its own for that."""
    from quarterdeck.server_process import take_lock
    from quarterdeck.store.migrate import sqlite_path

    if asked.lock_is_held or not sqlite_path(settings.database_url):
        yield
        return
    settings.data.mkdir(parents=True, exist_ok=True)
    lock = take_lock(settings.data / "server.lock")
    try:
        yield
    finally:
        os.close(lock)


def _db_status(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.store import migrate

    current = migrate.current_revision(settings.database_url)
    complaint = migrate.complaint(current)
    told = {"database": mask(settings.database_url), "revision": current, "known": migrate.revisions()}
    _show(asked, {**told, "complaint": complaint}, complaint or f"up to date, at revision {current}")
    return 0 if complaint is None else EXIT_FAILED


def _db_backup(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import backup

    copied = backup.copy(settings.database_url, asked.file)
    _show(asked, msgspec.to_builtins(copied), copied.text())
    return 0


def _audit_verify(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import audit

    trusted = audit.keys_to_trust(asked.key, settings.signing_key)
    verdict = audit.judge(settings.database_url, trusted, audit.anchors_of(asked.anchor))
    _show(asked, verdict.document(), verdict.text())
    return 0 if verdict.proven else EXIT_FAILED


def _audit_anchor(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import audit

    anchor = audit.newest_anchor(settings.database_url)
    _show(asked, {"anchor": anchor}, anchor)
    return 0


def _check(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.maintenance import consistency

    report = consistency.look(settings.database_url, asked.history)
    _show(asked, report.document(), report.text())
    return 0 if report.well else EXIT_FAILED


def _config_show(asked: argparse.Namespace, settings: Settings) -> int:
    rows = [(s.name, s.shown(), s.source, SHARED_NAMES.get(s.name, "")) for s in settings.found.values()]
    if asked.json:
        told = {name: {"value": value, "source": source} for name, value, source, _ in rows}
        _show(asked, told, "")
        return 0
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for name, value, source, _ in rows:
        sys.stdout.write(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}\n")
    return 0


def _token(asked: argparse.Namespace, settings: Settings) -> int:
    from quarterdeck.core.caller import COORDINATOR_ADMIN
    from quarterdeck.http.auth import AuthSettings, Grant
    from quarterdeck.server_process import open_issuer

    lifecycle = settings.section(AuthSettings).lifecycle_scope
    # Whoever asks for an agent's token, or names a role, asks for no more than that.
    plain = asked.agent is None and asked.role is None
    usual = (lifecycle, COORDINATOR_ADMIN) if asked.app == "local" and plain else (lifecycle,)
    scopes = tuple(asked.scope) if asked.scope else usual
    grant = Grant(
        zone_id=asked.zone,
        client_id=asked.app,
        subject=asked.app if asked.agent is None else f"agent:{asked.agent}",
        sid=asked.session or asked.app,
        session_id=asked.session,
        agent_id=asked.agent,
        role=asked.role,
        scopes=scopes,
    )
    token = open_issuer(settings).mint(grant, asked.ttl)
    _show(asked, {"token": token, "expires_in": asked.ttl, "scope": " ".join(scopes)}, token)
    return 0


def _show(asked: argparse.Namespace, told: object, text: str) -> None:
    sys.stdout.write((msgspec.json.encode(told).decode() if asked.json else text) + "\n")


if __name__ == "__main__":
    sys.exit(main())
