"""`qd service`: register, list, show, set, heartbeat, remove."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import ID, JSON_OBJECT, NUMBER, TEXT, Argument, Command, CommandTable, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import UsageError
from quarterdeck.cli.input import without_none
from quarterdeck.cli.list_output import PAGING, ago, print_details, print_list
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document


def build_command_table() -> CommandTable:
    id_argument, optional_id_argument = (Argument("id", "ID", ID),), (Argument("id", "ID", ID, required=False),)
    return CommandTable(
        (
            Command(
                ("service", "register"),
                "Register a service and print its id.",
                register,
                options=_REGISTER_OPTIONS,
                description=_REGISTER_HELP,
            ),
            Command(("service", "list"), "List services, newest first.", list_, options=_LIST_OPTIONS),
            Command(("service", "show"), "Show one service.", show, id_argument),
            Command(("service", "set"), "Change the properties of a service.", set_, id_argument, _SET_OPTIONS),
            Command(
                ("service", "heartbeat"),
                "Send a heartbeat for a service.",
                heartbeat,
                optional_id_argument,
                _HEARTBEAT_OPTIONS,
                _HEARTBEAT_HELP,
            ),
            Command(("service", "remove"), "Unregister a service.", remove, id_argument, _REMOVE_OPTIONS),
        ),
        {"service": "Manage services: endpoints that can be invoked."},
    )


_HEALTH = choice("starting", "healthy", "degraded", "unhealthy")
_DELIVERY = choice("pull", "push")
_SESSION_OPTION = Option("--session", "Session that owns the service. The service ends with its session.", ID)
_SERVICE_OPTIONS = (
    Option("--delivery", "pull: workers claim invocations; push: the server posts them to the endpoint.", _DELIVERY),
    Option("--capability", "Capability of the service; repeatable.", TEXT, many=True),
    Option("--protocol", "Supported protocol version; repeatable.", TEXT, many=True),
    Option("--framework", "Name of the framework that the service uses.", TEXT),
    Option("--framework-version", "Version of the framework.", TEXT),
    Option("--health", "Health to report.", _HEALTH),
    Option("--metadata", "JSON object to store with the service.", JSON_OBJECT),
)
_REGISTER_OPTIONS = (
    Option("--endpoint", "URL of the service: http://… or https://…", TEXT, required=True),
    Option("--app", "Application that offers the service [default: the application of the session].", ID),
    _SESSION_OPTION,
    *_SERVICE_OPTIONS,
)
_REGISTER_HELP = """Application and endpoint identify a service: registering the same two again updates it and returns
the same id. With --delivery push, the secret that signs pushes is printed once and cannot be shown again."""
_LIST_OPTIONS = (
    Option("--app", "Only services of this application.", ID),
    Option("--session", "Only services of this session.", ID),
    Option("--health", "Only services that report this health.", _HEALTH),
    *PAGING,
)
_SET_OPTIONS = (*_SERVICE_OPTIONS, Option("--rotate-secret", "Create a new secret that signs pushes, and print it."))
_HEARTBEAT_OPTIONS = (
    Option("--session", "Session that owns the service. Without ID, the heartbeat is for all its services.", ID),
    Option("--health", "Health to report.", _HEALTH),
    Option("--active", "Number of invocations that the service is working on.", NUMBER),
    Option("--metadata", "JSON object to store with the service.", JSON_OBJECT),
)
_HEARTBEAT_HELP = "Give the ID of a service, or only --session for all services of that session."
_REMOVE_OPTIONS = (Option("--session", "Remove only the registration of this session.", ID),)


def register(context: Context) -> int:
    app, session = context.text("app"), context.text("session")
    if app is None and session is None:
        raise UsageError("usage", "Give --app APPLICATION or --session ID: a service needs an owner.")
    body = {"endpoint_url": context.required_text("endpoint"), "application_id": app, **_service_fields(context)}
    path = context.zone_path("agent-services") if session is None else _session_services_path(context, session)
    return _print_service(context, context.server().call("POST", path, body=without_none(body)).document)


def list_(context: Context) -> int:
    session = context.text("session")
    if session is None:
        query = {"application_id": context.text("app"), "health": context.text("health")}
        return print_list(context, context.zone_path("agent-services"), query, _table)
    if context.text("app") or context.text("health"):
        raise UsageError("usage", "--session cannot be combined with --app or --health.")
    return print_list(context, _session_services_path(context, session), {}, _table)


def show(context: Context) -> int:
    return print_details(context, context.zone_path("agent-services", context.required_text("id")))


def set_(context: Context) -> int:
    body = _service_fields(context)
    if context.flag("rotate_secret"):
        body["rotate_secret"] = True
    body = without_none(body)
    if not body:
        raise UsageError("usage", "Give at least one option to change. Try `qd service set --help`.")
    path = context.zone_path("agent-services", context.required_text("id"))
    return _print_service(context, context.server().call("PATCH", path, body=body).document)


def heartbeat(context: Context) -> int:
    service, session = context.text("id"), context.text("session")
    body = without_none(
        {
            "health": context.text("health"),
            "active_invocations": context.number("active"),
            "metadata": context.parsed.values["metadata"],
        }
    )
    if service is None and session is None:
        raise UsageError("usage", "Give the ID of a service, or --session for all services of a session.")
    if service is None:
        assert session is not None
        path = context.zone_path("agents", session, "heartbeat")
    else:
        path = f"{_service_path(context, service)}/heartbeat"
    reply = context.server().call("POST", path, body=body)
    context.show(reply.document, _format_heartbeat_reply)
    return 0


def remove(context: Context) -> int:
    service_id = context.required_text("id")
    context.server().call("DELETE", _service_path(context, service_id))
    context.show(
        {"id": service_id, "status": "unregistered"}, lambda document: f"Removed service {cell(document['id'])}."
    )
    return 0


def _session_services_path(context: Context, session: str) -> str:
    return context.zone_path("agents", session, "services")


def _service_path(context: Context, service: str) -> str:
    """Build the path of the service, below its session if --session was given."""
    session = context.text("session")
    if session is None:
        return context.zone_path("agent-services", service)
    return context.zone_path("agents", session, "services", service)


def _service_fields(context: Context) -> Document:
    return {
        "delivery": context.text("delivery"),
        "capabilities": context.values("capability") or None,
        "protocol_versions": context.values("protocol") or None,
        "framework_name": context.text("framework"),
        "framework_version": context.text("framework_version"),
        "health": context.text("health"),
        "metadata_json": context.parsed.values["metadata"],
    }


def _print_service(context: Context, service: Document) -> int:
    secret = service.get("secret")
    pairs: list[tuple[str, object]] = [("id", service.get("id")), ("secret", secret)]
    context.show(service, lambda _: cell(service.get("id")) if secret is None else fields(pairs, context.styler))
    if secret is not None:
        context.note("The secret is shown only once. Create a new one with `qd service set ID --rotate-secret`.")
    return 0


def _format_heartbeat_reply(reply: Document) -> str:
    if "services" not in reply:
        return f"Heartbeat recorded for {cell(reply.get('id'))}: {cell(reply.get('health'))}."
    count = reply["services"]
    return f"Heartbeat recorded for {cell(count)} {'service' if count == 1 else 'services'}."


def _table(context: Context, services: list[Document]) -> str:
    if not services:
        return f"No services found in zone {context.zone}."
    now = time.time()
    field_names = ("id", "application_id", "endpoint_url", "delivery", "health", "agent_id")
    rows = [
        [*(service.get(name) for name in field_names), ago(service.get("last_heartbeat_at"), now)]
        for service in services
    ]
    return table(("ID", "APPLICATION", "ENDPOINT", "DELIVERY", "HEALTH", "SESSION", "HEARTBEAT"), rows, context.styler)
