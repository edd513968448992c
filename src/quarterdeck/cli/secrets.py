"""Keys of secrets: what is sealed with which, and putting a new one in the place of an old one."""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Iterator

from quarterdeck.cli.command_table import ID, Argument, Command, Noun
from quarterdeck.cli.context import Context
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document, Server, path_of
from quarterdeck.core.errors import EXIT_FAILED


def noun() -> Noun:
    return Noun(
        (
            Command(("secrets", "status"), "Count what is sealed, by key.", status, description=_STATUS),
            Command(("secrets", "rotate"), "Seal everything with the newest key.", rotate, description=_ROTATE),
            Command(
                ("secrets", "forget"),
                "Let servers start without a key.",
                forget,
                (Argument("key", "KEY", ID),),
                description=_FORGET,
            ),
            Command(("secrets", "new-key"), "Print a new key.", new_key, description=_NEW_KEY),
        ),
        {"secrets": "The keys that secrets are sealed with."},
    )


_STATUS = """Exits with 1 if something is sealed with a key that the server lacks."""
_ROTATE = """Goes through everything that is kept, a step at a time, beside all other work; it may be stopped and begun
again at any time. Run it when every server has the new key first in QD_SECRET_KEYS or in its key file. Exits with 0
when nothing is left under an older key: servers then start without it, and it may be taken away."""
_FORGET = """Only `qd secrets rotate` should have to do this. What is sealed with the key all the same is shown as ***
by a server that lacks it."""
_NEW_KEY = """For QD_SECRET_KEYS, or as a line of the file `secret-keys` in the data directory. The first key seals, all
of them open. With several servers: give it to all of them as the last one, then to all as the first one."""


def status(context: Context) -> int:
    told, counts = _counted(context.server())
    told = {**told, "counts": dict(sorted(counts.items()))}
    context.show(told, lambda shown: _shown(context, shown))
    return EXIT_FAILED if counts.keys() - _names(told, "ring") else 0


def rotate(context: Context) -> int:
    server = context.server()
    done: Counter[str] = Counter()
    for step in _steps(server):
        done.update({name: _number(step, name) for name in ("resealed", "unopened", "moved")})
    told, counts = _counted(server)
    older = sum(count for key, count in counts.items() if key != told.get("sealing"))
    freed = [] if older else sorted(_names(told, "needed") - {cell(told.get("sealing"))})
    for key in freed:
        server.call("DELETE", path_of("secrets", "keys", key))
    shown: Document = {**done, "left": older, "forgotten": [*freed]}
    context.show(shown, lambda all_: _rotated(context, all_))
    return EXIT_FAILED if older else 0


def forget(context: Context) -> int:
    reply = context.server().call("DELETE", path_of("secrets", "keys", context.given("key")))
    context.show(reply.document, lambda told: f"servers start without {cell(told.get('id'))}")
    return 0


def new_key(context: Context) -> int:
    key = f"k{os.urandom(4).hex()}:{base64.b64encode(os.urandom(32)).decode()}"
    context.show({"key": key}, lambda told: cell(told.get("key")))
    return 0


def _steps(server: Server) -> Iterator[Document]:
    cursor: object = None
    while True:
        body: Document = {} if cursor is None else {"cursor": cursor}
        step = server.call("POST", "/secrets/rotate", body=body).document
        yield step
        cursor = step.get("next_cursor")
        if cursor is None:
            return


def _counted(server: Server) -> tuple[Document, Counter[str]]:
    """What the server says of its keys, and how much is sealed with each."""
    counts: Counter[str] = Counter()
    step: Document = {}
    for step in server.pages("/secrets", {}):
        found = step.get("counts")
        counts.update(found if isinstance(found, dict) else {})
    return {name: step.get(name) for name in ("sealing", "ring", "needed")}, counts


def _names(told: Document, name: str) -> set[str]:
    found = told.get(name)
    return {cell(one) for one in found} if isinstance(found, list) else set()


def _number(step: Document, name: str) -> int:
    found = step.get(name)
    return found if isinstance(found, int) else 0


def _shown(context: Context, told: Document) -> str:
    counts = told.get("counts")
    ring, needed = _names(told, "ring"), _names(told, "needed")
    found: dict[str, int] = dict(counts) if isinstance(counts, dict) else {}
    rows = []
    for key in sorted(ring | needed | found.keys()):
        has = "seals" if key == told.get("sealing") else "opens" if key in ring else "missing"
        rows.append([key, has, "yes" if key in needed else "no", found.get(key, 0)])
    return table(("KEY", "HERE", "NEEDED", "VALUES"), rows, context.paint)


def _rotated(context: Context, told: Document) -> str:
    named = ("resealed", "unopened", "moved", "left", "forgotten")
    return fields([(name, told.get(name)) for name in named], context.paint)
