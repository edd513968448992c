"""`qd secrets`: shows, rotates and generates the keys that encrypt stored secrets."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator

from quarterdeck.cli.command_table import ID, Argument, Group
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import ApiClient, Document, build_path
from quarterdeck.core.errors import EXIT_FAILED

GROUP = Group("secrets", "Manage the keys that encrypt stored secrets.")


@GROUP.command(
    "status",
    "Show how many values each key encrypts.",
    description="Exits 1 if a value is encrypted with a key that the server does not have.",
)
def status(context: Context) -> int:
    keys, counts = _load_key_counts(context.server())
    context.show({**keys, "counts": dict(sorted(counts.items()))}, lambda _: _key_table(context, keys, counts))
    return EXIT_FAILED if counts.keys() - _key_ids(keys, "ring") else 0


@GROUP.command(
    "rotate",
    "Re-encrypt all secrets with the current key.",
    description=(
        "Before the rotation, put the new key first in QD_SECRET_KEYS, or in the key file, on every server. "
        "The rotation runs in small steps while the server works normally. You can interrupt it and run it "
        "again. Exits 1 if a value is still encrypted with an older key. Otherwise servers can start without "
        "the old keys, and you can remove them."
    ),
)
def rotate(context: Context) -> int:
    server = context.server()
    totals = Counter(resealed=0, unopened=0, moved=0)
    for step in _rotation_steps(server):
        totals.update({name: count for name in totals if isinstance(count := step.get(name), int)})
    keys, counts = _load_key_counts(server)
    remaining = sum(count for key, count in counts.items() if key != keys.get("sealing"))
    unneeded_keys = [] if remaining else sorted(_key_ids(keys, "needed") - {cell(keys.get("sealing"))})
    for key in unneeded_keys:
        server.call("DELETE", build_path("secrets", "keys", key))
    summary: Document = {**totals, "left": remaining, "forgotten": [*unneeded_keys]}
    context.show(summary, lambda _: fields([(label, summary[name]) for name, label in _LABELS.items()], context.styler))
    return EXIT_FAILED if remaining else 0


@GROUP.command(
    "forget",
    "Allow servers to start without a particular key.",
    Argument("key", "KEY", ID),
    description=(
        "`qd secrets rotate` normally does this. Servers that do not have the key show values that are still "
        "encrypted with it as ***."
    ),
)
def forget(context: Context) -> None:
    path = build_path("secrets", "keys", context.required_text("key"))
    context.send("DELETE", path, lambda key: f"Servers can start without key {cell(key.get('id'))}.")


@GROUP.command(
    "new-key",
    "Generate a key and print it.",
    description=(
        "Put the key into QD_SECRET_KEYS, or on a line of the file `secret-keys` in the data directory. The "
        "first key encrypts; all keys decrypt. With several servers, first add it as the last key on every "
        "server, then move it to the front on every server."
    ),
)
def new_key(context: Context) -> None:
    key = f"k{os.urandom(4).hex()}:{base64.b64encode(os.urandom(32)).decode()}"
    context.show({"key": key}, key)


def _rotation_steps(server: ApiClient) -> Iterator[Document]:
    body: Document = {}
    while body.get("cursor", "") is not None:
        step = server.call("POST", "/secrets/rotate", body=body).document
        yield step
        body = {"cursor": step.get("next_cursor")}


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


def _key_table(context: Context, keys: Document, counts: Counter[str]) -> str:
    keyring, needed = _key_ids(keys, "ring"), _key_ids(keys, "needed")
    rows = [
        [
            key,
            "encrypts" if key == keys.get("sealing") else "decrypts" if key in keyring else "missing",
            key in needed,
            counts[key],
        ]
        for key in sorted(keyring | needed | counts.keys())
    ]
    return table(("KEY", "STATE", "NEEDED", "VALUES"), rows, context.styler)


_LABELS = {
    "resealed": "re-encrypted",
    "unopened": "not decryptable",
    "moved": "changed during rotation",
    "left": "under older keys",
    "forgotten": "keys no longer needed",
}
