"""`qd secrets`: shows, rotates and generates the keys that encrypt stored secrets."""

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
            Command(("secrets", "status"), "Show how many values each key encrypts.", status, description=_STATUS_HELP),
            Command(
                ("secrets", "rotate"), "Re-encrypt all secrets with the current key.", rotate, description=_ROTATE_HELP
            ),
            Command(
                ("secrets", "forget"),
                "Allow servers to start without a particular key.",
                forget,
                (Argument("key", "KEY", ID),),
                description=_FORGET_HELP,
            ),
            Command(("secrets", "new-key"), "Generate a key and print it.", new_key, description=_NEW_KEY_HELP),
        ),
        {"secrets": "Manage the keys that encrypt stored secrets."},
    )


_STATUS_HELP = """Exits 1 if a value is encrypted with a key that the server does not have."""
_ROTATE_HELP = """Before the rotation, put the new key first in QD_SECRET_KEYS, or in the key file, on every server. The
rotation runs in small steps while the server works normally. You can interrupt it and run it again. Exits 1 if a value
is still encrypted with an older key. Otherwise servers can start without the old keys, and you can remove them."""
_FORGET_HELP = """`qd secrets rotate` normally does this. Servers that do not have the key show values that are still
encrypted with it as ***."""
_NEW_KEY_HELP = """Put the key into QD_SECRET_KEYS, or on a line of the file `secret-keys` in the data directory. The
first key encrypts; all keys decrypt. With several servers, first add it as the last key on every server, then move it
to the front on every server."""


def status(context: Context) -> int:
    keys, counts = _load_key_counts(context.server())
    keys = {**keys, "counts": dict(sorted(counts.items()))}
    context.show(keys, lambda document: _key_table(context, document))
    return EXIT_FAILED if counts.keys() - _key_ids(keys, "ring") else 0


def rotate(context: Context) -> int:
    server = context.server()
    totals: Counter[str] = Counter()
    for step in _rotation_steps(server):
        totals.update({name: _number(step, name) for name in ("resealed", "unopened", "moved")})
    keys, counts = _load_key_counts(server)
    remaining = sum(count for key, count in counts.items() if key != keys.get("sealing"))
    unneeded_keys = [] if remaining else sorted(_key_ids(keys, "needed") - {cell(keys.get("sealing"))})
    for key in unneeded_keys:
        server.call("DELETE", build_path("secrets", "keys", key))
    summary: Document = {**totals, "left": remaining, "forgotten": [*unneeded_keys]}
    context.show(summary, lambda document: _format_rotation(context, document))
    return EXIT_FAILED if remaining else 0


def forget(context: Context) -> int:
    reply = context.server().call("DELETE", build_path("secrets", "keys", context.required_text("key")))
    context.show(reply.document, lambda document: f"Servers can start without key {cell(document.get('id'))}.")
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
    """Load the keys of the server, and count how many values each key encrypts."""
    counts: Counter[str] = Counter()
    page: Document = {}
    for page in server.pages("/secrets", {}):
        page_counts = page.get("counts")
        counts.update(page_counts if isinstance(page_counts, dict) else {})
    return {name: page.get(name) for name in ("sealing", "ring", "needed")}, counts


def _key_ids(document: Document, name: str) -> set[str]:
    keys = document.get(name)
    return {cell(key) for key in keys} if isinstance(keys, list) else set()


def _number(step: Document, name: str) -> int:
    number = step.get(name)
    return number if isinstance(number, int) else 0


def _key_table(context: Context, document: Document) -> str:
    counts = document.get("counts")
    keyring, needed = _key_ids(document, "ring"), _key_ids(document, "needed")
    counts_by_key: dict[str, int] = dict(counts) if isinstance(counts, dict) else {}
    rows = []
    for key in sorted(keyring | needed | counts_by_key.keys()):
        state = "encrypts" if key == document.get("sealing") else "decrypts" if key in keyring else "missing"
        rows.append([key, state, "yes" if key in needed else "no", counts_by_key.get(key, 0)])
    return table(("KEY", "STATE", "NEEDED", "VALUES"), rows, context.styler)


def _format_rotation(context: Context, document: Document) -> str:
    labels = {
        "resealed": "re-encrypted",
        "unopened": "not decryptable",
        "moved": "changed during rotation",
        "left": "under older keys",
        "forgotten": "keys no longer needed",
    }
    return fields([(label, document.get(name)) for name, label in labels.items()], context.styler)
