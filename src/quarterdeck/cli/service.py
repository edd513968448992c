"""`qd service`: register, list, show, set, heartbeat, remove."""

from __future__ import annotations

from quarterdeck.cli.command_table import ID, ID_ARGUMENT, JSON_OBJECT, NUMBER, TEXT, Argument, Group, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import usage_error
from quarterdeck.cli.list_output import PAGING, Column, print_details, print_list, time_ago
from quarterdeck.cli.output import cell, fields
from quarterdeck.client.api import Document

GROUP = Group("service", "Manage services: endpoints that can be invoked.")


_HEALTH = choice("starting", "healthy", "degraded", "unhealthy")
_SERVICE_OPTIONS = (
    Option(
        "--delivery",
        "pull: workers claim invocations; push: the server posts them to the endpoint.",
        choice("pull", "push"),
        field="delivery",
    ),
    Option("--capability", "Capability of the service; repeatable.", TEXT, many=True, field="capabilities"),
    Option("--protocol", "Supported protocol version; repeatable.", TEXT, many=True, field="protocol_versions"),
    Option("--framework", "Name of the framework that the service uses.", TEXT, field="framework_name"),
    Option("--framework-version", "Version of the framework.", TEXT, field="framework_version"),
    Option("--health", "Health to report.", _HEALTH, field="health"),
    Option("--metadata", "JSON object to store with the service.", JSON_OBJECT, field="metadata_json"),
)


@GROUP.command(
    "register",
    "Register a service and print its id.",
    Option("--endpoint", "URL of the service: http://… or https://…", TEXT, required=True, field="endpoint_url"),
    Option(
        "--app",
        "Application that offers the service [default: the application of the session].",
        ID,
        field="application_id",
    ),
    Option("--session", "Session that owns the service. The service ends with its session.", ID),
    *_SERVICE_OPTIONS,
    description=(
        "Application and endpoint identify a service: registering the same two again updates it and returns "
        "the same id. With --delivery push, the secret that signs pushes is printed once and cannot be shown "
        "again."
    ),
)
def register(context: Context) -> None:
    if context.text("app") is None and context.text("session") is None:
        raise usage_error("Give --app APPLICATION or --session ID: a service needs an owner.")
    _print_service(context, context.server().call("POST", _path(context), body=context.body()).document)


@GROUP.command(
    "list",
    "List services, newest first.",
    Option("--app", "Only services of this application.", ID, field="application_id"),
    Option("--session", "Only services of this session.", ID),
    Option("--health", "Only services that report this health.", _HEALTH, field="health"),
    *PAGING,
)
def list_(context: Context) -> None:
    if context.text("session") is not None and (context.text("app") or context.text("health")):
        raise usage_error("--session cannot be combined with --app or --health.")
    print_list(context, _path(context), _COLUMNS, f"No services found in zone {context.zone}.")


@GROUP.command("show", "Show one service.", ID_ARGUMENT)
def show(context: Context) -> None:
    print_details(context, _path(context, context.required_text("id")))


@GROUP.command(
    "set",
    "Change the properties of a service.",
    ID_ARGUMENT,
    *_SERVICE_OPTIONS,
    Option("--rotate-secret", "Create a new secret that signs pushes, and print it.", field="rotate_secret"),
)
def set_(context: Context) -> None:
    path = _path(context, context.required_text("id"))
    _print_service(context, context.server().call("PATCH", path, body=context.changes()).document)


@GROUP.command(
    "heartbeat",
    "Send a heartbeat for a service.",
    Argument("id", "ID", ID, required=False),
    Option("--session", "Session that owns the service. Without ID, the heartbeat is for all its services.", ID),
    Option("--health", "Health to report.", _HEALTH, field="health"),
    Option("--active", "Number of invocations that the service is working on.", NUMBER, field="active_invocations"),
    Option("--metadata", "JSON object to store with the service.", JSON_OBJECT, field="metadata"),
    description="Give the ID of a service, or only --session for all services of that session.",
)
def heartbeat(context: Context) -> None:
    service, session = context.text("id"), context.text("session")
    if service is not None:
        path = _path(context, service, "heartbeat")
    elif session is not None:
        path = context.zone_path("agents", session, "heartbeat")
    else:
        raise usage_error("Give the ID of a service, or --session for all services of a session.")
    context.send("POST", path, _format_heartbeat_reply, body=context.body())


@GROUP.command(
    "remove",
    "Unregister a service.",
    ID_ARGUMENT,
    Option("--session", "Remove only the registration of this session.", ID),
)
def remove(context: Context) -> None:
    service_id = context.required_text("id")
    path = _path(context, service_id)
    context.remove(path, {"id": service_id, "status": "unregistered"}, f"Removed service {service_id}.")


def _path(context: Context, *segments: str) -> str:
    """Build a path below the services of the zone, or of its session if --session was given."""
    session = context.parsed.values.get("session")  # not every command has the option
    services = ("agent-services",) if session is None else ("agents", str(session), "services")
    return context.zone_path(*services, *segments)


def _print_service(context: Context, service: Document) -> None:
    secret = service.get("secret")
    pairs: list[tuple[str, object]] = [("id", service.get("id")), ("secret", secret)]
    context.show(service, lambda _: cell(service.get("id")) if secret is None else fields(pairs, context.styler))
    if secret is not None:
        context.note("The secret is shown only once. Create a new one with `qd service set ID --rotate-secret`.")


def _format_heartbeat_reply(reply: Document) -> str:
    if "services" not in reply:
        return f"Heartbeat recorded for {cell(reply.get('id'))}: {cell(reply.get('health'))}."
    count = reply["services"]
    return f"Heartbeat recorded for {cell(count)} {'service' if count == 1 else 'services'}."


_COLUMNS = (
    Column("ID", "id"),
    Column("APPLICATION", "application_id"),
    Column("ENDPOINT", "endpoint_url"),
    Column("DELIVERY", "delivery"),
    Column("HEALTH", "health"),
    Column("SESSION", "agent_id"),
    Column("HEARTBEAT", time_ago("last_heartbeat_at")),
)
