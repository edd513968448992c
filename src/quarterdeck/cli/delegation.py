"""`qd delegation`: create, list, show, revoke, graph, authority."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Command,
    CommandTable,
    Option,
    choice,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.delegation_graph import draw, format_expiry, format_hops
from quarterdeck.cli.input import without_none
from quarterdeck.cli.list_output import PAGING, print_details, print_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.cli.receipt import format_session_count
from quarterdeck.cli.session_tree import glyphs_for
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import NotFound


def build_command_table() -> CommandTable:
    id_argument = (Argument("id", "ID", ID),)
    edge_or_session_argument = (Argument("id", "DELEGATION|SESSION", ID),)
    session_argument = (Argument("session", "SESSION", ID),)
    return CommandTable(
        (
            Command(
                ("delegation", "create"),
                "Delegate authority from one session to another.",
                create,
                options=_CREATE_OPTIONS,
                description=_CREATE_HELP,
            ),
            Command(("delegation", "list"), "List delegations, newest first.", list_, options=_LIST_OPTIONS),
            Command(("delegation", "show"), "Show one delegation.", show, id_argument),
            Command(
                ("delegation", "revoke"),
                "Revoke a delegation and those derived from it.",
                revoke,
                id_argument,
                _REVOKE_OPTIONS,
                _REVOKE_HELP,
            ),
            Command(
                ("delegation", "graph"),
                "Draw the graph of active delegations around a delegation or session.",
                graph,
                edge_or_session_argument,
                _GRAPH_OPTIONS,
                _GRAPH_HELP,
            ),
            Command(
                ("delegation", "authority"),
                "Show the authority of a session and its delegations.",
                authority,
                session_argument,
            ),
        ),
        {"delegation": "Manage delegations of authority between sessions. A delegation can only narrow authority."},
    )


_CREATE_OPTIONS = (
    Option("--from", "Source session, which delegates authority.", ID, required=True),
    Option("--to", "Target session, which receives authority.", ID, required=True),
    Option("--scope", "Scope to delegate; repeatable.", TEXT, many=True),
    Option("--resource", "Resource to limit the scopes to; repeatable [default: all].", TEXT, many=True),
    Option(
        "--hops", "How many delegations may follow in the chain, 1 to 10 [default: what the parent allows].", NUMBER
    ),
    Option(
        "--ttl", "Lifetime, such as 90s, 15m or 2h [default: until its parent or one of the sessions ends].", DURATION
    ),
    Option("--parent", "Delegation to derive the new one from [default: the server picks one that allows it].", ID),
    Option("--constraints", "JSON object with more constraints, such as actions or budget.", JSON_OBJECT),
    Option("--key", "Idempotency key: the same key returns the same delegation.", TEXT),
)
_CREATE_HELP = "Prints the id. Refuses a delegation that would exceed the authority of its source or create a cycle."
_LIST_OPTIONS = (
    Option("--from", "Only delegations from this session.", ID),
    Option("--to", "Only delegations to this session.", ID),
    Option("--status", "Only delegations with this status.", choice("active", "revoked", "expired")),
    *PAGING,
)
_REVOKE_OPTIONS = (Option("--keep-sessions", "Do not terminate sessions that lose their last delegation."),)
_REVOKE_HELP = """Also revokes all delegations derived from it. Terminates each session that loses its last
delegation, and the descendants of that session. Revoking again changes nothing."""
_GRAPH_OPTIONS = (Option("--limit", "Maximum number of delegations to draw, 1 to 1000 [default: 100].", NUMBER),)
_GRAPH_HELP = """For a delegation, draws the delegations that it is derived from and those that are reachable from it.
For a session, draws the delegations to it and those that are reachable from it. Revoking a delegation also revokes all
delegations below it."""


def create(context: Context) -> int:
    extra_constraints = context.parsed.values["constraints"]
    constraints: Document = dict(extra_constraints) if isinstance(extra_constraints, dict) else {}
    if context.values("resource"):
        constraints["resources"] = context.values("resource")
    if context.number("hops") is not None:
        constraints["max_hops"] = context.number("hops")
    body: Document = {
        "source_session_id": context.required_text("from"),
        "target_session_id": context.required_text("to"),
        "scopes": context.values("scope"),
        "constraints": constraints or None,
        "ttl_seconds": context.number("ttl"),
        "parent_edge_id": context.text("parent"),
    }
    reply = context.server().call(
        "POST", context.zone_path("delegations"), body=without_none(body), key=context.text("key")
    )
    context.show(reply.document, lambda edge: cell(edge.get("id")))
    return 0


def list_(context: Context) -> int:
    query = {"source": context.text("from"), "target": context.text("to"), "status": context.text("status")}
    return print_list(context, context.zone_path("delegations"), query, _table)


def show(context: Context) -> int:
    # Each of these repeats the value of another field.
    omitted_fields = ("delegation_edge_id", "source_agent_id", "target_agent_id")
    return print_details(context, context.zone_path("delegations", context.required_text("id")), *omitted_fields)


def revoke(context: Context) -> int:
    edge_id, query = context.required_text("id"), {"keep_sessions": context.flag("keep_sessions")}
    reply = context.server().call("DELETE", context.zone_path("delegations", edge_id), query=query)
    context.show(reply.document, lambda document: _format_revocation(edge_id, document))
    return 0


def graph(context: Context) -> int:
    edge_or_session_id = context.required_text("id")
    loader = GraphLoader(context)
    loader.load(edge_or_session_id)
    edges = [*loader.edges.values()]
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(
        {"items": edges, "truncated": loader.truncated},
        lambda _: draw(edges, edge_or_session_id, time.time(), context.styler, glyphs),
    )
    if context.as_json:
        return 0
    if not edges:
        context.note(f"{edge_or_session_id} has no active delegations.")
    elif loader.truncated:
        context.note(f"More than {len(edges)} delegations exist. Use --limit to draw up to 1000.")
    return 0


def authority(context: Context) -> int:
    held_authority = context.server().get(context.zone_path("agents", context.required_text("session"), "authority"))
    context.show(held_authority, lambda document: _format_authority(context, document))
    return 0


class GraphLoader:
    """Loads the edges to draw, each once, up to --limit."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._server = context.server()
        self._limit = context.number("limit") or 100
        self.edges: dict[str, Document] = {}
        self.truncated = False

    def load(self, edge_or_session_id: str) -> None:
        """Load the edges to draw for a delegation, or for a session if no delegation has this id."""
        try:
            self.load_edge(edge_or_session_id)
        except NotFound as no_edge:
            if no_edge.code != "delegation_not_found":
                raise
            try:
                self.load_session(edge_or_session_id)
            except NotFound as no_session:
                if no_session.code == "agent_not_found":
                    zone = self._context.zone
                    no_session.detail = f"Zone {zone} has no delegation or session {edge_or_session_id!r}."
                raise

    def load_edge(self, edge_id: str) -> None:
        """Load the edges that the edge is derived from, and those that are reachable from it."""
        explanation = self._get(edge_id, "explain")
        self._add([*reversed(page_items(explanation, "chain"))])
        self._load_reachable(edge_id)

    def load_session(self, session_id: str) -> None:
        """Load the edges that lead to the session, and those that are reachable from it."""
        query: dict[str, str | int | bool | None] = {"status": "active", "limit": min(self._limit, 500)}
        inbound = self._get("inbound", session_id, query=query)
        outbound = self._get("outbound", session_id, query=query)
        self._add(page_items(inbound))
        for edge in page_items(outbound):
            if str(edge.get("id")) not in self.edges:
                self._load_reachable(str(edge.get("id")))
        self.truncated = self.truncated or bool(inbound.get("next_cursor") or outbound.get("next_cursor"))

    def _load_reachable(self, edge_id: str) -> None:
        remaining = self._limit - len(self.edges)
        if remaining < 1:
            self.truncated = True
            return
        page = self._get(edge_id, "traverse", query={"limit": remaining})
        self._add([edge for item in page_items(page) if isinstance(edge := item.get("edge"), dict)])
        self.truncated = self.truncated or page.get("truncated") is True

    def _add(self, edges: list[Document]) -> None:
        for edge in edges:
            self.edges.setdefault(str(edge.get("id")), edge)

    def _get(self, *segments: str, query: dict[str, str | int | bool | None] | None = None) -> Document:
        return self._server.get(self._context.zone_path("delegations", *segments), query)


def _format_revocation(edge_id: str, receipt: Document) -> str:
    edges, terminated = receipt.get("revoked_edges"), receipt.get("terminated_agents")
    if edges == 0:
        return f"Delegation {edge_id} had already ended."
    edge_count = "1 delegation" if edges == 1 else f"{cell(edges)} delegations"
    session_count = format_session_count(terminated if isinstance(terminated, int) else 0)
    return f"Revoked {edge_id}: {edge_count} revoked, {session_count} terminated."


def _table(context: Context, edges: list[Document]) -> str:
    if not edges:
        return f"No delegations found in zone {context.zone}."
    now = time.time()
    field_names = ("id", "source_session_id", "target_session_id", "scopes")
    rows = [
        [
            *(edge.get(name) for name in field_names),
            _format_resources(edge),
            edge.get("status"),
            format_hops(edge),
            format_expiry(edge, now),
        ]
        for edge in edges
    ]
    return table(("ID", "FROM", "TO", "SCOPES", "RESOURCES", "STATUS", "HOPS", "EXPIRY"), rows, context.styler)


def _format_resources(edge: Document) -> object:
    resources = edge.get("resources")
    return "all" if resources is None else resources


def _format_authority(context: Context, document: Document) -> str:
    # Scopes are listed per edge too, because each edge may limit them to different resources.
    no_authority_reason = document.get("why_none")
    scope_pairs: list[tuple[str, object]] = [("scopes", document.get("scopes"))]
    if no_authority_reason is not None:
        scope_pairs = [("scopes", "none"), ("reason", no_authority_reason)]
    pairs = [("session", document.get("session_id")), *scope_pairs, ("epoch", document.get("epoch"))]
    edges = page_items(document, "edges")
    text = fields(pairs, context.styler)
    return f"{text}\n\n{_table(context, edges)}" if edges else text
