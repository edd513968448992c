"""`qd service`: what is offered, by whom and how it is, on both engines."""

from __future__ import annotations

import re

import pytest

from tests.cli.cli_support import Qd
from tests.support.engine_marks import ON_BOTH

ENDPOINT = "https://research.example/rpc"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=_-]{20,}")


def registered(qd: Qd, *words: str) -> str:
    return qd.run("service", "register", "--app", "researcher", "--endpoint", ENDPOINT, *words)


@ON_BOTH
def test_register_prints_the_id_alone_and_the_same_endpoint_is_the_same_service(zone_qd: Qd) -> None:
    first = registered(zone_qd, "--capability", "summarise", "--capability", "cite", "--protocol", "a2a/1")
    assert re.fullmatch(r"[0-9a-f-]{36}", first)
    assert registered(zone_qd, "--framework", "own", "--framework-version", "2") == first
    told = zone_qd.run_json("service", "show", first)
    assert (told["application_id"], told["endpoint_url"], told["delivery"]) == ("researcher", ENDPOINT, "pull")
    assert told["capabilities"] == ["summarise", "cite"], "what is not said again stays"
    assert (told["framework_name"], told["framework_version"]) == ("own", "2")
    assert told["protocol_versions"] == ["a2a/1"]
    shown = zone_qd.run("service", "show", first)
    assert re.search(r"^capabilities +summarise, cite$", shown, re.MULTILINE)
    assert re.search(r"^created_at +\S+Z \(\d+s ago\)$", shown, re.MULTILINE)


def test_the_secret_of_a_pushed_service_is_printed_once_and_another_when_it_is_rotated(zone_qd: Qd) -> None:
    done = zone_qd("service", "register", "--app", "p", "--endpoint", ENDPOINT, "--delivery", "push")
    assert done.returncode == 0, done.stderr
    told = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert SECRET.fullmatch(told["secret"])
    assert "once" in done.stderr
    assert not SECRET.search(done.stderr)
    assert not SECRET.search(zone_qd.run("service", "show", told["id"], "--json"))
    again = zone_qd.run_json("service", "set", told["id"], "--rotate-secret")
    assert SECRET.fullmatch(again["secret"])
    assert again["secret"] != told["secret"]


@ON_BOTH
def test_a_service_of_a_session_goes_with_it(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "researcher")
    service = zone_qd.run("service", "register", "--session", session, "--endpoint", ENDPOINT)
    assert zone_qd.run_json("service", "show", service)["agent_id"] == session
    [listed] = zone_qd.run_json("service", "list", "--session", session)["items"]
    assert listed["id"] == service
    zone_qd.run("session", "stop", session)
    assert zone_qd("service", "show", service).returncode == 4
    assert zone_qd.run("service", "list").startswith("no such services in zone")


def test_set_changes_what_is_said_and_heartbeats_tell_how_it_is(zone_qd: Qd) -> None:
    service = registered(zone_qd)
    assert zone_qd.run("service", "set", service, "--metadata", '{"team": "blue"}') == service
    assert zone_qd.run_json("service", "show", service)["metadata_json"] == {"team": "blue"}
    beat = zone_qd.run("service", "heartbeat", service, "--health", "healthy", "--active", "3")
    assert beat == f"heard of {service}: healthy"
    told = zone_qd.run_json("service", "heartbeat", service)
    assert (told["health"], told["active_invocations"]) == ("healthy", 3)
    assert told["last_heartbeat_at"]
    heads, row = zone_qd.run("service", "list", "--health", "healthy").splitlines()
    assert re.split("  +", heads) == [
        "ID", "APPLICATION", "ENDPOINT", "DELIVERY", "HEALTH", "SESSION", "HEARD OF",
    ]  # fmt: skip
    assert re.split("  +", row)[:-1] == [service, "researcher", ENDPOINT, "pull", "healthy", "-"]
    assert zone_qd.run("service", "list", "--health", "unhealthy").startswith("no such services")


def test_one_heartbeat_may_stand_for_every_service_of_a_session(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "researcher")
    for n in range(2):
        zone_qd.run("service", "register", "--session", session, "--endpoint", f"{ENDPOINT}/{n}")
    assert zone_qd.run("service", "heartbeat", "--session", session, "--health", "degraded") == ("heard of 2 services")
    items = zone_qd.run_json("service", "list", "--session", session)["items"]
    assert {one["health"] for one in items} == {"degraded"}
    [first, _] = items
    assert zone_qd.run("service", "heartbeat", first["id"], "--session", session).endswith(": degraded")


def test_removing_is_done_once_and_may_be_said_again(zone_qd: Qd) -> None:
    service = registered(zone_qd)
    assert zone_qd.run("service", "remove", service) == f"removed {service}"
    assert zone_qd.run_json("service", "remove", service) == {"id": service, "status": "unregistered"}
    assert zone_qd("service", "show", service).returncode == 4


def test_pages_are_followed(zone_qd: Qd) -> None:
    made = [zone_qd.run("service", "register", "--app", "a", "--endpoint", f"{ENDPOINT}/{n}") for n in range(3)]
    page = zone_qd("service", "list", "--limit", "2")
    assert len(page.stdout.splitlines()) == 3
    assert "--cursor" in page.stderr
    every = zone_qd.run_json("service", "list", "--limit", "2", "--all")
    assert [one["id"] for one in every["items"]] == made[::-1]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("register", "--endpoint", ENDPOINT), 2, "--app, or --session"),
        (("register", "--app", "a"), 2, "--endpoint"),
        (("register", "--app", "a", "--endpoint", "ftp://x"), 1, "http"),
        (("register", "--session", "no-such", "--endpoint", ENDPOINT), 4, "no-such"),
        (("set", "no-such", "--health", "healthy"), 4, "no-such"),
        (("set", "no-such"), 2, "Nothing was said"),
        (("heartbeat",), 2, "--session"),
        (("heartbeat", "no-such"), 4, "no-such"),
        (("list", "--session", "s", "--app", "a"), 2, "stands alone"),
        (("list", "--health", "fine"), 2, "not one of"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_an_exit_code(
    zone_qd: Qd, words: tuple[str, ...], code: int, said: str
) -> None:
    done = zone_qd("service", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
