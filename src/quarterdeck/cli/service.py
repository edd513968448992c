"""Services: register, list, show, change, tell that they live, remove."""

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
            Command(("service", "set"), "Change what is said of a service.", set_, id_argument, _SET_OPTIONS),
            Command(
                ("service", "heartbeat"),
                "Tell that a service lives.",
                heartbeat,
                optional_id_argument,
                _HEARTBEAT_OPTIONS,
                _HEARTBEAT_HELP,
            ),
            Command(("service", "remove"), "Unregister a service.", remove, id_argument, _REMOVE_OPTIONS),
        ),
        {"service": "What sessions and applications offer, for others to invoke."},
    )


_HEALTH = choice("starting", "healthy", "degraded", "unhealthy")
_DELIVERY = choice("pull", "push")
_SESSION_OPTION = Option("--session", "The session whose service it is; it goes when that session ends.", ID)
_SERVICE_OPTIONS = (
    Option("--delivery", "Whether workers claim its invocations, or the server posts them to it.", _DELIVERY),
    Option("--capability", "A capability it has; may be repeated.", TEXT, many=True),
    Option("--protocol", "A version of a protocol it speaks; may be repeated.", TEXT, many=True),
    Option("--framework", "What it was made with.", TEXT),
    Option("--framework-version", "The version of that.", TEXT),
    Option("--health", "How it is.", _HEALTH),
    Option("--metadata", "A JSON object to keep with it.", JSON_OBJECT),
)
_REGISTER_OPTIONS = (
    Option("--endpoint", "Where it is: http://… or https://…", TEXT, required=True),
    Option("--app", "The application that offers it [default: the session's].", ID),
    _SESSION_OPTION,
    *_SERVICE_OPTIONS,
)
_REGISTER_HELP = """The same endpoint of the same application is the same service: registering it again changes what is
said, and gives the same id. With --delivery push the secret that pushes are signed with is printed, this once."""
_LIST_OPTIONS = (
    Option("--app", "Only those of this application.", ID),
    Option("--session", "Only those that this session registered.", ID),
    Option("--health", "Only those that say so of themselves.", _HEALTH),
    *PAGING,
)
_SET_OPTIONS = (
    *_SERVICE_OPTIONS,
    Option("--rotate-secret", "Sign pushes with another secret from now on, and print it."),
)
_HEARTBEAT_OPTIONS = (
    Option("--session", "Of this session: the service named, or all of them.", ID),
    Option("--health", "How it is.", _HEALTH),
    Option("--active", "How many invocations it works on.", NUMBER),
    Option("--metadata", "A JSON object to keep with it.", JSON_OBJECT),
)
_HEARTBEAT_HELP = "Names a service, or with --session alone every service of that session."
_REMOVE_OPTIONS = (Option("--session", "Only this session's registration.", ID),)


def register(context: Context) -> int:
    """The id alone on stdout, because it is what the next command wants."""
    app, session = context.text("app"), context.text("session")
    if app is None and session is None:
        raise UsageError("usage", "Whose service is it? Give --app, or --session. Try `qd service register --help`.")
    body = {"endpoint_url": context.required_text("endpoint"), "application_id": app, **_service_fields(context)}
    path = context.in_zone("agent-services") if session is None else _session_services_path(context, session)
    return _print_service(context, context.server().call("POST", path, body=without_none(body)).document)


def list_(context: Context) -> int:
    session = context.text("session")
    if session is None:
        query = {"application_id": context.text("app"), "health": context.text("health")}
        return print_list(context, context.in_zone("agent-services"), query, _table)
    if context.text("app") or context.text("health"):
        raise UsageError("usage", "--session stands alone: a session's services are listed whole.")
    return print_list(context, _session_services_path(context, session), {}, _table)


def show(context: Context) -> int:
    return print_details(context, context.in_zone("agent-services", context.required_text("id")))


def set_(context: Context) -> int:
    body = _service_fields(context)
    if context.flag("rotate_secret"):
        body["rotate_secret"] = True
    body = without_none(body)
    if not body:
        raise UsageError("usage", "Nothing was said to change. Try `qd service set --help`.")
    path = context.in_zone("agent-services", context.required_text("id"))
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
        raise UsageError("usage", "Which service lives? Name it, or give --session for all of a session's.")
    if service is None:
        assert session is not None
        path = context.in_zone("agents", session, "heartbeat")
    else:
        path = f"{_service_path(context, service)}/heartbeat"
    reply = context.server().call("POST", path, body=body)
    context.show(reply.document, _format_heartbeat_reply)
    return 0


def remove(context: Context) -> int:
    service_id = context.required_text("id")
    context.server().call("DELETE", _service_path(context, service_id))
    context.show({"id": service_id, "status": "unregistered"}, lambda document: f"removed {cell(document['id'])}")
    return 0


def _session_services_path(context: Context, session: str) -> str:
    return context.in_zone("agents", session, "services")


def _service_path(context: Context, service: str) -> str:
    """A service by itself, or as the one of the session that was named."""
    session = context.text("session")
    if session is None:
        return context.in_zone("agent-services", service)
    return context.in_zone("agents", session, "services", service)


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
    context.show(service, lambda found: cell(found.get("id")) if secret is None else fields(pairs, context.styler))
    if secret is not None:
        context.note("the secret is shown this once; `qd service set ID --rotate-secret` makes another")
    return 0


def _format_heartbeat_reply(reply: Document) -> str:
    if "services" not in reply:
        return f"heard of {cell(reply.get('id'))}: {cell(reply.get('health'))}"
    count = reply["services"]
    return f"heard of {cell(count)} {'service' if count == 1 else 'services'}"


def _table(context: Context, services: list[Document]) -> str:
    if not services:
        return f"no such services in zone {context.zone}"
    now = time.time()
    field_names = ("id", "application_id", "endpoint_url", "delivery", "health", "agent_id")
    rows = [
        [*(service.get(name) for name in field_names), ago(service.get("last_heartbeat_at"), now)]
        for service in services
    ]
    return table(("ID", "APPLICATION", "ENDPOINT", "DELIVERY", "HEALTH", "SESSION", "HEARD OF"), rows, context.styler)
