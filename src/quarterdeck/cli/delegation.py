"""Delegations: create, list, show, revoke, draw what hangs together, and what a session holds by them."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import DURATION, ID, NUMBER, OBJECT, TEXT, Argument, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.delegation_graph import draw, hops, life
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.list_output import PAGES, show_list, show_one
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.cli.receipt import sessions
from quarterdeck.cli.session_tree import lines_for
from quarterdeck.client.api import Document, items_of
from quarterdeck.core.errors import NotFound


def noun() -> Noun:
    one = (Argument("id", "ID", ID),)
    either = (Argument("id", "DELEGATION|SESSION", ID),)
    session = (Argument("session", "SESSION", ID),)
    return Noun(
        (
            Command(
                ("delegation", "create"),
                "Lend authority from one session to another.",
                create,
                options=_CREATE,
                description=_CREATING,
            ),
            Command(("delegation", "list"), "List delegations, newest first.", list_, options=_LIST),
            Command(("delegation", "show"), "Show one delegation.", show, one),
            Command(("delegation", "revoke"), "Take a delegation back.", revoke, one, _REVOKE, _REVOKING),
            Command(
                ("delegation", "graph"),
                "Draw the active delegations around one, or around a session.",
                graph,
                either,
                _GRAPH,
                _DRAWING,
            ),
            Command(("delegation", "authority"), "Show what a session holds, and by which.", authority, session),
        ),
        {"delegation": "Authority that one session lends to another. It only narrows."},
    )


_CREATE = (
    Option("--from", "The session that lends.", ID, required=True),
    Option("--to", "The session that receives.", ID, required=True),
    Option("--scope", "A scope that is lent; may be repeated.", TEXT, many=True),
    Option("--resource", "A resource it is lent for; may be repeated [default: all].", TEXT, many=True),
    Option("--hops", "How often it may be passed on, 1 to 10 [default: as its parent allows].", NUMBER),
    Option("--ttl", "For how long: 90, 15m, 2h [default: while its parent and both sessions last].", DURATION),
    Option("--parent", "The delegation it is derived from [default: the one that covers it].", ID),
    Option("--constraints", "A JSON object of more constraints, such as actions or budget.", OBJECT),
    Option("--key", "Idempotency key: repeating the command gives the same delegation.", TEXT),
)
_CREATING = "Prints its id. Exits with 1 if it would exceed what the lender holds, or close a cycle."
_LIST = (
    Option("--from", "Only those that this session lends.", ID),
    Option("--to", "Only those to this session.", ID),
    Option("--status", "Only those in this status.", choice("active", "revoked", "expired")),
    *PAGES,
)
_REVOKE = (Option("--keep-sessions", "Let the sessions run on, without the authority."),)
_REVOKING = """Takes all that are derived from it, too, and ends each session that no delegation is left to, with all
below it. Repeating it moves nothing."""
_GRAPH = (Option("--limit", "How many delegations to draw at most, 1 to 1000 [default: 100].", NUMBER),)
_DRAWING = """Of a delegation: the line of those it is derived from, and all that is reached from it. Of a session:
those that lead to it, and all that is reached from it. What stands below a line is revoked with it."""


def create(context: Context) -> int:
    more = context.ask.values["constraints"]
    constraints: Document = dict(more) if isinstance(more, dict) else {}
    if context.many("resource"):
        constraints["resources"] = context.many("resource")
    if context.number("hops") is not None:
        constraints["max_hops"] = context.number("hops")
    asked: Document = {
        "source_session_id": context.given("from"),
        "target_session_id": context.given("to"),
        "scopes": context.many("scope"),
        "constraints": constraints or None,
        "ttl_seconds": context.number("ttl"),
        "parent_edge_id": context.text("parent"),
    }
    reply = context.server().call(
        "POST", context.in_zone("delegations"), body=without_nothing(asked), key=context.text("key")
    )
    context.show(reply.document, lambda edge: cell(edge.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {"source": context.text("from"), "target": context.text("to"), "status": context.text("status")}
    return show_list(context, context.in_zone("delegations"), query, _table)


def show(context: Context) -> int:
    # What has two names is told by one.
    twice = ("delegation_edge_id", "source_agent_id", "target_agent_id")
    return show_one(context, context.in_zone("delegations", context.given("id")), *twice)


def revoke(context: Context) -> int:
    target, query = context.given("id"), {"keep_sessions": context.flag("keep_sessions")}
    reply = context.server().call("DELETE", context.in_zone("delegations", target), query=query)
    context.show(reply.document, lambda told: f"revoked {target}: {_revoked(told)}")
    return 0


def graph(context: Context) -> int:
    target = context.given("id")
    found = Drawing(context)
    found.around(target)
    edges = [*found.edges.values()]
    lines = lines_for(sys.stdout.encoding)
    context.show(
        {"items": edges, "truncated": found.truncated}, lambda _: draw(edges, target, time.time(), context.paint, lines)
    )
    if context.as_json:
        return 0
    if not edges:
        context.note("no active delegation leads to it or from it")
    elif found.truncated:
        context.note(f"there are more than these {len(edges)}: --limit draws up to 1000")
    return 0


def authority(context: Context) -> int:
    held = context.server().get(context.in_zone("agents", context.given("session"), "authority"))
    context.show(held, lambda told: _held(context, told))
    return 0


class Drawing:
    """The edges to draw, each once."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._server = context.server()
        self._most = context.number("limit") or 100
        self.edges: dict[str, Document] = {}
        self.truncated = False

    def around(self, target: str) -> None:
        """Ids do not tell what they are of."""
        try:
            self.around_edge(target)
        except NotFound as missing:
            if missing.code != "delegation_not_found":
                raise
            try:
                self.around_session(target)
            except NotFound as unknown:
                if unknown.code == "agent_not_found":
                    unknown.detail = f"There is neither a delegation nor a session {target!r} in this zone."
                raise

    def around_edge(self, edge: str) -> None:
        """The line it is derived from, and what is reached from it."""
        told = self._get(edge, "explain")
        self._add([*reversed(items_of(told, "chain"))])
        self._reached_from(edge)

    def around_session(self, session: str) -> None:
        """What leads to it, and what is reached from it."""
        query: dict[str, str | int | bool | None] = {"status": "active", "limit": min(self._most, 500)}
        inbound = self._get("inbound", session, query=query)
        outbound = self._get("outbound", session, query=query)
        self._add(items_of(inbound))
        for edge in items_of(outbound):
            if str(edge.get("id")) not in self.edges:
                self._reached_from(str(edge.get("id")))
        self.truncated = self.truncated or bool(inbound.get("next_cursor") or outbound.get("next_cursor"))

    def _reached_from(self, edge: str) -> None:
        left = self._most - len(self.edges)
        if left < 1:
            self.truncated = True
            return
        told = self._get(edge, "traverse", query={"limit": left})
        self._add([one for item in items_of(told) if isinstance(one := item.get("edge"), dict)])
        self.truncated = self.truncated or told.get("truncated") is True

    def _add(self, edges: list[Document]) -> None:
        for edge in edges:
            self.edges.setdefault(str(edge.get("id")), edge)

    def _get(self, *segments: str, query: dict[str, str | int | bool | None] | None = None) -> Document:
        return self._server.get(self._context.in_zone("delegations", *segments), query)


def _revoked(told: Document) -> str:
    edges, ended = told.get("revoked_edges"), told.get("terminated_agents")
    if edges == 0:
        return "it was over already"
    count = "1 delegation" if edges == 1 else f"{cell(edges)} delegations"
    return f"{count} taken back, {sessions(ended if isinstance(ended, int) else 0)} ended"


def _table(context: Context, edges: list[Document]) -> str:
    if not edges:
        return f"no such delegations in zone {context.zone}"
    now = time.time()
    named = ("id", "source_session_id", "target_session_id", "scopes")
    rows = [
        [*(edge.get(name) for name in named), _for(edge), edge.get("status"), hops(edge), life(edge, now)]
        for edge in edges
    ]
    return table(("ID", "FROM", "TO", "SCOPES", "FOR", "STATUS", "HOPS", "LIFE"), rows, context.paint)


def _for(edge: Document) -> object:
    resources = edge.get("resources")
    return "all" if resources is None else resources


def _held(context: Context, told: Document) -> str:
    """Edge by edge: what one lends for some resources, another may not lend for those."""
    why_none = told.get("why_none")
    holds: list[tuple[str, object]] = [("scopes", told.get("scopes"))]
    if why_none is not None:
        holds = [("holds", "nothing"), ("because", why_none)]
    pairs = [("session", told.get("session_id")), *holds, ("epoch", told.get("epoch"))]
    edges = items_of(told, "edges")
    shown = fields(pairs, context.paint)
    return f"{shown}\n\n{_table(context, edges)}" if edges else shown
