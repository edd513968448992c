"""`qd service`."""

from __future__ import annotations

import re

import pytest

from tests.cli.cli_support import Qd
from tests.support.engine_marks import ON_BOTH

ENDPOINT = "https://research.example/rpc"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=_-]{20,}")


def register_service(qd: Qd, *words: str) -> str:
    return qd.run("service", "register", "--app", "researcher", "--endpoint", ENDPOINT, *words)


@ON_BOTH
def test_register_prints_only_the_id_and_is_idempotent_by_endpoint(zone_qd: Qd) -> None:
    first = register_service(zone_qd, "--capability", "summarise", "--capability", "cite", "--protocol", "a2a/1")
    assert re.fullmatch(r"[0-9a-f-]{36}", first)
    assert register_service(zone_qd, "--framework", "own", "--framework-version", "2") == first
    reply = zone_qd.run_json("service", "show", first)
    assert (reply["application_id"], reply["endpoint_url"], reply["delivery"]) == ("researcher", ENDPOINT, "pull")
    assert reply["capabilities"] == ["summarise", "cite"], "omitted options keep their value"
    assert (reply["framework_name"], reply["framework_version"]) == ("own", "2")
    assert reply["protocol_versions"] == ["a2a/1"]
    output = zone_qd.run("service", "show", first)
    assert re.search(r"^capabilities +summarise, cite$", output, re.MULTILINE)
    assert re.search(r"^created_at +\S+Z \(\d+s ago\)$", output, re.MULTILINE)


def test_push_secret_is_printed_once_and_replaced_by_rotation(zone_qd: Qd) -> None:
    result = zone_qd("service", "register", "--app", "p", "--endpoint", ENDPOINT, "--delivery", "push")
    assert result.returncode == 0, result.stderr
    fields = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert SECRET.fullmatch(fields["secret"])
    assert "once" in result.stderr
    assert not SECRET.search(result.stderr)
    assert not SECRET.search(zone_qd.run("service", "show", fields["id"], "--json"))
    rotated = zone_qd.run_json("service", "set", fields["id"], "--rotate-secret")
    assert SECRET.fullmatch(rotated["secret"])
    assert rotated["secret"] != fields["secret"]


@ON_BOTH
def test_service_is_unregistered_when_its_session_ends(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "researcher")
    service = zone_qd.run("service", "register", "--session", session, "--endpoint", ENDPOINT)
    assert zone_qd.run_json("service", "show", service)["agent_id"] == session
    [item] = zone_qd.run_json("service", "list", "--session", session)["items"]
    assert item["id"] == service
    zone_qd.run("session", "stop", session)
    assert zone_qd("service", "show", service).returncode == 4
    assert zone_qd.run("service", "list").startswith("No services found in zone")


def test_set_changes_fields_and_heartbeat_reports_health(zone_qd: Qd) -> None:
    service = register_service(zone_qd)
    assert zone_qd.run("service", "set", service, "--metadata", '{"team": "blue"}') == service
    assert zone_qd.run_json("service", "show", service)["metadata_json"] == {"team": "blue"}
    output = zone_qd.run("service", "heartbeat", service, "--health", "healthy", "--active", "3")
    assert output == f"Heartbeat recorded for {service}: healthy."
    reply = zone_qd.run_json("service", "heartbeat", service)
    assert (reply["health"], reply["active_invocations"]) == ("healthy", 3)
    assert reply["last_heartbeat_at"]
    header, row = zone_qd.run("service", "list", "--health", "healthy").splitlines()
    assert re.split("  +", header) == [
        "ID", "APPLICATION", "ENDPOINT", "DELIVERY", "HEALTH", "SESSION", "HEARTBEAT",
    ]  # fmt: skip
    assert re.split("  +", row)[:-1] == [service, "researcher", ENDPOINT, "pull", "healthy", "-"]
    assert zone_qd.run("service", "list", "--health", "unhealthy").startswith("No services found")


def test_session_heartbeat_covers_all_its_services(zone_qd: Qd) -> None:
    session = zone_qd.run("session", "spawn", "--app", "researcher")
    for n in range(2):
        zone_qd.run("service", "register", "--session", session, "--endpoint", f"{ENDPOINT}/{n}")
    assert zone_qd.run("service", "heartbeat", "--session", session, "--health", "degraded") == (
        "Heartbeat recorded for 2 services."
    )
    items = zone_qd.run_json("service", "list", "--session", session)["items"]
    assert {item["health"] for item in items} == {"degraded"}
    [first, _] = items
    assert zone_qd.run("service", "heartbeat", first["id"], "--session", session).endswith(": degraded.")


def test_remove_is_idempotent(zone_qd: Qd) -> None:
    service = register_service(zone_qd)
    assert zone_qd.run("service", "remove", service) == f"Removed service {service}."
    assert zone_qd.run_json("service", "remove", service) == {"id": service, "status": "unregistered"}
    assert zone_qd("service", "show", service).returncode == 4


def test_list_fetches_every_page(zone_qd: Qd) -> None:
    services = [zone_qd.run("service", "register", "--app", "a", "--endpoint", f"{ENDPOINT}/{n}") for n in range(3)]
    page = zone_qd("service", "list", "--limit", "2")
    assert len(page.stdout.splitlines()) == 3
    assert "--cursor" in page.stderr
    all_pages = zone_qd.run_json("service", "list", "--limit", "2", "--all")
    assert [item["id"] for item in all_pages["items"]] == services[::-1]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("register", "--endpoint", ENDPOINT), 2, "--session ID"),
        (("register", "--app", "a"), 2, "--endpoint"),
        (("register", "--app", "a", "--endpoint", "ftp://x"), 1, "http"),
        (("register", "--session", "no-such", "--endpoint", ENDPOINT), 4, "no-such"),
        (("set", "no-such", "--health", "healthy"), 4, "no-such"),
        (("set", "no-such"), 2, "at least one option"),
        (("heartbeat",), 2, "--session"),
        (("heartbeat", "no-such"), 4, "no-such"),
        (("list", "--session", "s", "--app", "a"), 2, "cannot be combined"),
        (("list", "--health", "fine"), 2, "Use one of"),
    ],
)
def test_failed_command_prints_an_error_and_sets_the_exit_code(
    zone_qd: Qd, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = zone_qd("service", *words)
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
