"""Keys of secrets: what is sealed with which, and putting a new one in the place of an old one."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator

from quarterdeck.cli.command_table import ID, Argument, Command, CommandTable
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import ApiClient, Document, build_path
from quarterdeck.core.errors import EXIT_FAILED


def build_command_table() -> CommandTable:
    return CommandTable(
        (
            Command(("secrets", "status"), "Count what is sealed, by key.", status, description=_STATUS_HELP),
            Command(("secrets", "rotate"), "Seal everything with the newest key.", rotate, description=_ROTATE_HELP),
            Command(
                ("secrets", "forget"),
                "Let servers start without a key.",
                forget,
                (Argument("key", "KEY", ID),),
                description=_FORGET_HELP,
            ),
            Command(("secrets", "new-key"), "Print a new key.", new_key, description=_NEW_KEY_HELP),
        ),
        {"secrets": "The keys that secrets are sealed with."},
    )


_STATUS_HELP = """Exits with 1 if something is sealed with a key that the server lacks."""
_ROTATE_HELP = """Goes through everything that is kept, a step at a time, beside all other work; it may be stopped and begun
again at any time. Run it when every server has the new key first in QD_SECRET_KEYS or in its key file. Exits with 0
when nothing is left under an older key: servers then start without it, and it may be taken away."""
_FORGET_HELP = """Only `qd secrets rotate` should have to do this. What is sealed with the key all the same is shown as ***
by a server that lacks it."""
_NEW_KEY_HELP = """For QD_SECRET_KEYS, or as a line of the file `secret-keys` in the data directory. The first key seals, all
of them open. With several servers: give it to all of them as the last one, then to all as the first one."""


def status(context: Context) -> int:
    keys, counts = _load_key_counts(context.server())
    keys = {**keys, "counts": dict(sorted(counts.items()))}
    context.show(keys, lambda document: _key_table(context, document))
    return EXIT_FAILED if counts.keys() - _names(keys, "ring") else 0


def rotate(context: Context) -> int:
    server = context.server()
    totals: Counter[str] = Counter()
    for step in _rotation_steps(server):
        totals.update({name: _number(step, name) for name in ("resealed", "unopened", "moved")})
    keys, counts = _load_key_counts(server)
    remaining = sum(count for key, count in counts.items() if key != keys.get("sealing"))
    unneeded_keys = [] if remaining else sorted(_names(keys, "needed") - {cell(keys.get("sealing"))})
    for key in unneeded_keys:
        server.call("DELETE", build_path("secrets", "keys", key))
    summary: Document = {**totals, "left": remaining, "forgotten": [*unneeded_keys]}
    context.show(summary, lambda document: _format_rotation(context, document))
    return EXIT_FAILED if remaining else 0


def forget(context: Context) -> int:
    reply = context.server().call("DELETE", build_path("secrets", "keys", context.required_text("key")))
    context.show(reply.document, lambda document: f"servers start without {cell(document.get('id'))}")
    return 0


def new_key(context: Context) -> int:
    key = f"k{os.urandom(4).hex()}:{base64.b64encode(os.urandom(32)).decode()}"
    context.show({"key": key}, lambda document: cell(document.get("key")))
    return 0


def _rotation_steps(server: ApiClient) -> Iterator[Document]:
    cursor: object = None
    while True:
        body: Document = {} if cursor is None else {"cursor": cursor}
        step = server.call("POST", "/secrets/rotate", body=body).document
        yield step
        cursor = step.get("next_cursor")
        if cursor is None:
            return


def _load_key_counts(server: ApiClient) -> tuple[Document, Counter[str]]:
    """What the server says of its keys, and how much is sealed with each."""
    counts: Counter[str] = Counter()
    step: Document = {}
    for step in server.pages("/secrets", {}):
        found = step.get("counts")
        counts.update(found if isinstance(found, dict) else {})
    return {name: step.get(name) for name in ("sealing", "ring", "needed")}, counts


def _names(document: Document, name: str) -> set[str]:
    found = document.get(name)
    return {cell(key) for key in found} if isinstance(found, list) else set()


def _number(step: Document, name: str) -> int:
    found = step.get(name)
    return found if isinstance(found, int) else 0


def _key_table(context: Context, document: Document) -> str:
    counts = document.get("counts")
    keyring, needed = _names(document, "ring"), _names(document, "needed")
    counts_by_key: dict[str, int] = dict(counts) if isinstance(counts, dict) else {}
    rows = []
    for key in sorted(keyring | needed | counts_by_key.keys()):
        state = "seals" if key == document.get("sealing") else "opens" if key in keyring else "missing"
        rows.append([key, state, "yes" if key in needed else "no", counts_by_key.get(key, 0)])
    return table(("KEY", "HERE", "NEEDED", "VALUES"), rows, context.styler)


def _format_rotation(context: Context, document: Document) -> str:
    field_names = ("resealed", "unopened", "moved", "left", "forgotten")
    return fields([(name, document.get(name)) for name in field_names], context.styler)
