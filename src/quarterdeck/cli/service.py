"""Services: register, list, show, change, tell that they live, remove."""

from __future__ import annotations

import time

from quarterdeck.cli.command_table import ID, NUMBER, OBJECT, TEXT, Argument, Command, Noun, Option, choice
from quarterdeck.cli.context import Context
from quarterdeck.cli.errors import Usage
from quarterdeck.cli.input import without_nothing
from quarterdeck.cli.list_output import PAGES, ago, show_list, show_one
from quarterdeck.cli.output import cell, fields, table
from quarterdeck.client.api import Document


def noun() -> Noun:
    one, maybe = (Argument("id", "ID", ID),), (Argument("id", "ID", ID, required=False),)
    return Noun(
        (
            Command(
                ("service", "register"),
                "Register a service and print its id.",
                register,
                options=_REGISTER,
                description=_REGISTERING,
            ),
            Command(("service", "list"), "List services, newest first.", list_, options=_LIST),
            Command(("service", "show"), "Show one service.", show, one),
            Command(("service", "set"), "Change what is said of a service.", set_, one, _SET),
            Command(("service", "heartbeat"), "Tell that a service lives.", heartbeat, maybe, _BEAT, _BEATING),
            Command(("service", "remove"), "Unregister a service.", remove, one, _REMOVE),
        ),
        {"service": "What sessions and applications offer, for others to invoke."},
    )


_HEALTH = choice("starting", "healthy", "degraded", "unhealthy")
_DELIVERY = choice("pull", "push")
_SESSION = Option("--session", "The session whose service it is; it goes when that session ends.", ID)
_SAID = (
    Option("--delivery", "Whether workers claim its invocations, or the server posts them to it.", _DELIVERY),
    Option("--capability", "A capability it has; may be repeated.", TEXT, many=True),
    Option("--protocol", "A version of a protocol it speaks; may be repeated.", TEXT, many=True),
    Option("--framework", "What it was made with.", TEXT),
    Option("--framework-version", "The version of that.", TEXT),
    Option("--health", "How it is.", _HEALTH),
    Option("--metadata", "A JSON object to keep with it.", OBJECT),
)
_REGISTER = (
    Option("--endpoint", "Where it is: http://… or https://…", TEXT, required=True),
    Option("--app", "The application that offers it [default: the session's].", ID),
    _SESSION,
    *_SAID,
)
_REGISTERING = """The same endpoint of the same application is the same service: registering it again changes what is
said, and gives the same id. With --delivery push the secret that pushes are signed with is printed, this once."""
_LIST = (
    Option("--app", "Only those of this application.", ID),
    Option("--session", "Only those that this session registered.", ID),
    Option("--health", "Only those that say so of themselves.", _HEALTH),
    *PAGES,
)
_SET = (*_SAID, Option("--rotate-secret", "Sign pushes with another secret from now on, and print it."))
_BEAT = (
    Option("--session", "Of this session: the service named, or all of them.", ID),
    Option("--health", "How it is.", _HEALTH),
    Option("--active", "How many invocations it works on.", NUMBER),
    Option("--metadata", "A JSON object to keep with it.", OBJECT),
)
_BEATING = "Names a service, or with --session alone every service of that session."
_REMOVE = (Option("--session", "Only this session's registration.", ID),)


def register(context: Context) -> int:
    """The id alone on stdout, because it is what the next command wants."""
    app, session = context.text("app"), context.text("session")
    if app is None and session is None:
        raise Usage("usage", "Whose service is it? Give --app, or --session. Try `qd service register --help`.")
    body = {"endpoint_url": context.given("endpoint"), "application_id": app, **_said(context)}
    path = context.in_zone("agent-services") if session is None else _of_session(context, session)
    return _hand_out(context, context.server().call("POST", path, body=without_nothing(body)).document)


def list_(context: Context) -> int:
    session = context.text("session")
    if session is None:
        query = {"application_id": context.text("app"), "health": context.text("health")}
        return show_list(context, context.in_zone("agent-services"), query, _table)
    if context.text("app") or context.text("health"):
        raise Usage("usage", "--session stands alone: a session's services are listed whole.")
    return show_list(context, _of_session(context, session), {}, _table)


def show(context: Context) -> int:
    return show_one(context, context.in_zone("agent-services", context.given("id")))


def set_(context: Context) -> int:
    body = _said(context)
    if context.flag("rotate_secret"):
        body["rotate_secret"] = True
    body = without_nothing(body)
    if not body:
        raise Usage("usage", "Nothing was said to change. Try `qd service set --help`.")
    path = context.in_zone("agent-services", context.given("id"))
    return _hand_out(context, context.server().call("PATCH", path, body=body).document)


def heartbeat(context: Context) -> int:
    service, session = context.text("id"), context.text("session")
    body = without_nothing(
        {
            "health": context.text("health"),
            "active_invocations": context.number("active"),
            "metadata": context.ask.values["metadata"],
        }
    )
    if service is None and session is None:
        raise Usage("usage", "Which service lives? Name it, or give --session for all of a session's.")
    if service is None:
        assert session is not None
        path = context.in_zone("agents", session, "heartbeat")
    else:
        path = f"{_path_of(context, service)}/heartbeat"
    reply = context.server().call("POST", path, body=body)
    context.show(reply.document, _heard)
    return 0


def remove(context: Context) -> int:
    target = context.given("id")
    context.server().call("DELETE", _path_of(context, target))
    context.show({"id": target, "status": "unregistered"}, lambda told: f"removed {cell(told['id'])}")
    return 0


def _of_session(context: Context, session: str) -> str:
    return context.in_zone("agents", session, "services")


def _path_of(context: Context, service: str) -> str:
    """A service by itself, or as the one of the session that was named."""
    session = context.text("session")
    if session is None:
        return context.in_zone("agent-services", service)
    return context.in_zone("agents", session, "services", service)


def _said(context: Context) -> Document:
    return {
        "delivery": context.text("delivery"),
        "capabilities": context.many("capability") or None,
        "protocol_versions": context.many("protocol") or None,
        "framework_name": context.text("framework"),
        "framework_version": context.text("framework_version"),
        "health": context.text("health"),
        "metadata_json": context.ask.values["metadata"],
    }


def _hand_out(context: Context, service: Document) -> int:
    secret = service.get("secret")
    pairs: list[tuple[str, object]] = [("id", service.get("id")), ("secret", secret)]
    context.show(service, lambda found: cell(found.get("id")) if secret is None else fields(pairs, context.paint))
    if secret is not None:
        context.note("the secret is shown this once; `qd service set ID --rotate-secret` makes another")
    return 0


def _heard(told: Document) -> str:
    if "services" not in told:
        return f"heard of {cell(told.get('id'))}: {cell(told.get('health'))}"
    count = told["services"]
    return f"heard of {cell(count)} {'service' if count == 1 else 'services'}"


def _table(context: Context, services: list[Document]) -> str:
    if not services:
        return f"no such services in zone {context.zone}"
    now = time.time()
    named = ("id", "application_id", "endpoint_url", "delivery", "health", "agent_id")
    rows = [[*(one.get(name) for name in named), ago(one.get("last_heartbeat_at"), now)] for one in services]
    return table(("ID", "APPLICATION", "ENDPOINT", "DELIVERY", "HEALTH", "SESSION", "HEARD OF"), rows, context.paint)
