"""`qd webhook`: webhooks, deliveries and replay."""

from __future__ import annotations

import re

import pytest

from tests.cli.cli_support import Qd
from tests.support.engine_marks import ON_BOTH

URL = "https://hooks.invalid/quarterdeck"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{20,}")


def add_webhook(qd: Qd, *words: str) -> str:
    return str(qd.run_json("webhook", "add", URL, *words)["id"])


@ON_BOTH
def test_webhook_is_added_listed_shown_changed_rotated_and_removed(zone_qd: Qd) -> None:
    result = zone_qd("webhook", "add", URL, "--type", "task.created", "--type", "alert", "--description", "ops")
    assert result.returncode == 0, result.stderr
    fields = dict(line.split(None, 1) for line in result.stdout.splitlines())
    assert SECRET.fullmatch(fields["secret"])
    assert "once" in result.stderr and not SECRET.search(result.stderr)
    header, row = zone_qd.run("webhook", "list").splitlines()
    assert re.split("  +", header) == ["ID", "URL", "TYPES", "STATE", "FAILING SINCE"]
    assert re.split("  +", row) == [fields["id"], URL, "task.created, alert", "enabled", "-"]
    assert not SECRET.search(zone_qd.run("webhook", "show", fields["id"]))
    assert zone_qd.run("webhook", "set", fields["id"], "--enabled", "no") == fields["id"]
    assert zone_qd.run_json("webhook", "show", fields["id"])["disabledReason"] == "by_hand"
    rotated = zone_qd.run_json("webhook", "rotate-secret", fields["id"])
    assert SECRET.fullmatch(rotated["secret"]) and rotated["secret"] != fields["secret"]
    assert zone_qd.run("webhook", "remove", fields["id"]) == f"Removed webhook {fields['id']}."
    assert zone_qd.run("webhook", "list").startswith("No webhooks in zone")


def test_add_with_the_same_key_creates_one_webhook(zone_qd: Qd) -> None:
    first, second = (zone_qd.run_json("webhook", "add", URL, "--key", "k") for _ in range(2))
    assert second == first
    assert add_webhook(zone_qd) != first["id"]


def test_deliveries_are_listed_and_replayed(zone_qd: Qd) -> None:
    webhook = add_webhook(zone_qd)
    assert zone_qd.run("webhook", "deliveries", webhook) == "No deliveries found."
    delivery_id = zone_qd.run("webhook", "test", webhook)
    header, row = zone_qd.run("webhook", "deliveries", webhook, "--status", "pending").splitlines()
    assert re.split("  +", header) == ["ID", "EVENT", "STATUS", "ATTEMPTS", "RESPONSE", "CREATED", "ERROR"]
    assert re.split("  +", row)[:3] == [delivery_id, "webhook.test", "pending"]
    assert zone_qd.run("webhook", "replay", webhook, delivery_id) == "Sending 1 delivery again."
    assert zone_qd.run_json("webhook", "replay", webhook, "--failed") == {"items": []}


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("add",), 2, "URL"),
        (("add", "http://127.0.0.1/"), 1, "https://"),
        (("add", URL, "--type", "task.finished"), 1, "task.finished"),
        (("show", "no-such"), 4, "no-such"),
        (("set", "no-such"), 2, "at least one option"),
        (("replay", "no-such"), 2, "--failed"),
        (("replay", "no-such", "one", "--failed"), 2, "--failed"),
        (("replay", "no-such", "one"), 4, "no-such"),
        (("deliveries", "no-such", "--status", "lost"), 2, "Use one of"),
    ],
)
def test_failed_command_prints_an_error_and_sets_the_exit_code(
    zone_qd: Qd, words: tuple[str, ...], code: int, expected: str
) -> None:
    result = zone_qd("webhook", *words)
    assert (result.returncode, result.stdout) == (code, ""), result.stderr
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
