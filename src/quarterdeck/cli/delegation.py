"""`qd delegation`: create, list, show, revoke, graph, authority."""

from __future__ import annotations

import sys
import time

from quarterdeck.cli.command_table import (
    DURATION,
    ID,
    ID_ARGUMENT,
    JSON_OBJECT,
    NUMBER,
    TEXT,
    Argument,
    Group,
    Option,
    choice,
    key_option,
)
from quarterdeck.cli.context import Context
from quarterdeck.cli.delegation_graph import draw, format_expiry, format_hops
from quarterdeck.cli.list_output import PAGING, Column, field_text, fields_and_table, print_details, print_list
from quarterdeck.cli.output import cell
from quarterdeck.cli.receipt import format_session_count
from quarterdeck.cli.session_tree import glyphs_for
from quarterdeck.client.api import Document, page_items
from quarterdeck.core.errors import NotFound

GROUP = Group("delegation", "Manage delegations of authority between sessions. A delegation can only narrow authority.")


@GROUP.command(
    "create",
    "Delegate authority from one session to another.",
    Option("--from", "Source session, which delegates authority.", ID, required=True, field="source_session_id"),
    Option("--to", "Target session, which receives authority.", ID, required=True, field="target_session_id"),
    Option("--scope", "Scope to delegate; repeatable.", TEXT, many=True),
    Option("--resource", "Resource to limit the scopes to; repeatable [default: all].", TEXT, many=True),
    Option(
        "--hops", "How many delegations may follow in the chain, 1 to 10 [default: what the parent allows].", NUMBER
    ),
    Option(
        "--ttl",
        "Lifetime, such as 90s, 15m or 2h [default: until its parent or one of the sessions ends].",
        DURATION,
        field="ttl_seconds",
    ),
    Option(
        "--parent",
        "Delegation to derive the new one from [default: the server picks one that allows it].",
        ID,
        field="parent_edge_id",
    ),
    Option("--constraints", "JSON object with more constraints, such as actions or budget.", JSON_OBJECT),
    key_option("delegation"),
    description="Prints the id. Refuses a delegation that would exceed the authority of its source or create a cycle.",
)
def create(context: Context) -> None:
    extra_constraints = context.parsed.values["constraints"]
    constraints: Document = dict(extra_constraints) if isinstance(extra_constraints, dict) else {}
    if context.values("resource"):
        constraints["resources"] = context.values("resource")
    if context.number("hops") is not None:
        constraints["max_hops"] = context.number("hops")
    body = context.body(scopes=context.values("scope"), constraints=constraints or None)
    context.send("POST", context.zone_path("delegations"), field_text("id"), body=body, key=context.text("key"))


@GROUP.command(
    "list",
    "List delegations, newest first.",
    Option("--from", "Only delegations from this session.", ID, field="source"),
    Option("--to", "Only delegations to this session.", ID, field="target"),
    Option("--status", "Only delegations with this status.", choice("active", "revoked", "expired"), field="status"),
    *PAGING,
)
def list_(context: Context) -> None:
    print_list(context, context.zone_path("delegations"), _COLUMNS, f"No delegations found in zone {context.zone}.")


@GROUP.command("show", "Show one delegation.", ID_ARGUMENT)
def show(context: Context) -> None:
    # Each of these repeats the value of another field.
    omitted_fields = ("delegation_edge_id", "source_agent_id", "target_agent_id")
    print_details(context, context.zone_path("delegations", context.required_text("id")), *omitted_fields)


@GROUP.command(
    "revoke",
    "Revoke a delegation and those derived from it.",
    ID_ARGUMENT,
    Option("--keep-sessions", "Do not terminate sessions that lose their last delegation.", field="keep_sessions"),
    description=(
        "Also revokes all delegations derived from it. Terminates each session that loses its last "
        "delegation, and the descendants of that session. Revoking again changes nothing."
    ),
)
def revoke(context: Context) -> None:
    edge_id = context.required_text("id")
    path = context.with_query(context.zone_path("delegations", edge_id))
    context.send("DELETE", path, lambda receipt: _format_revocation(edge_id, receipt))


@GROUP.command(
    "graph",
    "Draw the graph of active delegations around a delegation or session.",
    Argument("id", "DELEGATION|SESSION", ID),
    Option("--limit", "Maximum number of delegations to draw, 1 to 1000 [default: 100].", NUMBER),
    description=(
        "For a delegation, draws the delegations that it is derived from and those that are reachable from "
        "it. For a session, draws the delegations to it and those that are reachable from it. Revoking a "
        "delegation also revokes all delegations below it."
    ),
)
def graph(context: Context) -> None:
    edge_or_session_id = context.required_text("id")
    loader = GraphLoader(context)
    loader.load(edge_or_session_id)
    edges = [*loader.edges.values()]
    glyphs = glyphs_for(sys.stdout.encoding)
    context.show(
        {"items": edges, "truncated": loader.truncated},
        lambda _: draw(edges, edge_or_session_id, time.time(), context.styler, glyphs),
    )
    if not edges:
        context.hint(f"{edge_or_session_id} has no active delegations.")
    elif loader.truncated:
        context.hint(f"More than {len(edges)} delegations exist. Use --limit to draw up to 1000.")


@GROUP.command("authority", "Show the authority of a session and its delegations.", Argument("session", "SESSION", ID))
def authority(context: Context) -> None:
    path = context.zone_path("agents", context.required_text("session"), "authority")
    context.send("GET", path, lambda document: _format_authority(context, document))


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


_COLUMNS = (
    Column("ID", "id"),
    Column("FROM", "source_session_id"),
    Column("TO", "target_session_id"),
    Column("SCOPES", "scopes"),
    Column("RESOURCES", lambda edge, _: "all" if edge.get("resources") is None else edge["resources"]),
    Column("STATUS", "status"),
    Column("HOPS", lambda edge, _: format_hops(edge)),
    Column("EXPIRY", format_expiry),
)


def _format_authority(context: Context, document: Document) -> str:
    # Scopes are listed per edge too, because each edge may limit them to different resources.
    no_authority_reason = document.get("why_none")
    scope_pairs: list[tuple[str, object]] = [("scopes", document.get("scopes"))]
    if no_authority_reason is not None:
        scope_pairs = [("scopes", "none"), ("reason", no_authority_reason)]
    pairs = [("session", document.get("session_id")), *scope_pairs, ("epoch", document.get("epoch"))]
    return fields_and_table(context, pairs, _COLUMNS, page_items(document, "edges"))
