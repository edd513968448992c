"""`qd webhook`: who outside is told, what was sent to them, and sending it again."""

from __future__ import annotations

import re

import pytest

from tests.cli.cli_support import Qd
from tests.support.engine_marks import ON_BOTH

URL = "https://hooks.invalid/quarterdeck"
SECRET = re.compile(r"whsec_[A-Za-z0-9+/=]{20,}")


def added(qd: Qd, *words: str) -> str:
    return str(qd.run_json("webhook", "add", URL, *words)["id"])


@ON_BOTH
def test_add_prints_id_and_secret_once_and_list_show_set_and_remove_speak_of_it(zone_qd: Qd) -> None:
    done = zone_qd("webhook", "add", URL, "--type", "task.created", "--type", "alert", "--description", "ops")
    assert done.returncode == 0, done.stderr
    told = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert SECRET.fullmatch(told["secret"])
    assert "once" in done.stderr and not SECRET.search(done.stderr)
    heads, row = zone_qd.run("webhook", "list").splitlines()
    assert re.split("  +", heads) == ["ID", "URL", "TYPES", "STATE", "FAILING SINCE"]
    assert re.split("  +", row) == [told["id"], URL, "task.created, alert", "enabled", "-"]
    assert not SECRET.search(zone_qd.run("webhook", "show", told["id"]))
    assert zone_qd.run("webhook", "set", told["id"], "--enabled", "no") == told["id"]
    assert zone_qd.run_json("webhook", "show", told["id"])["disabledReason"] == "by_hand"
    again = zone_qd.run_json("webhook", "rotate-secret", told["id"])
    assert SECRET.fullmatch(again["secret"]) and again["secret"] != told["secret"]
    assert zone_qd.run("webhook", "remove", told["id"]) == f"removed {told['id']}"
    assert zone_qd.run("webhook", "list").startswith("no webhooks in zone")


def test_with_a_key_the_same_webhook_is_made_once(zone_qd: Qd) -> None:
    first, again = (zone_qd.run_json("webhook", "add", URL, "--key", "k") for _ in range(2))
    assert again == first
    assert added(zone_qd) != first["id"]


def test_what_was_sent_is_listed_and_sent_again(zone_qd: Qd) -> None:
    webhook = added(zone_qd)
    assert zone_qd.run("webhook", "deliveries", webhook) == "nothing was sent"
    sent = zone_qd.run("webhook", "test", webhook)
    heads, row = zone_qd.run("webhook", "deliveries", webhook, "--status", "pending").splitlines()
    assert re.split("  +", heads) == ["ID", "EVENT", "STATUS", "TRIES", "ANSWER", "MADE", "ERROR"]
    assert re.split("  +", row)[:3] == [sent, "webhook.test", "pending"]
    assert zone_qd.run("webhook", "replay", webhook, sent) == "sends 1 delivery again"
    assert zone_qd.run_json("webhook", "replay", webhook, "--failed") == {"items": []}


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("add",), 2, "URL"),
        (("add", "http://127.0.0.1/"), 1, "https://"),
        (("add", URL, "--type", "task.finished"), 1, "task.finished"),
        (("show", "no-such"), 4, "no-such"),
        (("set", "no-such"), 2, "Nothing was said"),
        (("replay", "no-such"), 2, "--failed"),
        (("replay", "no-such", "one", "--failed"), 2, "--failed"),
        (("replay", "no-such", "one"), 4, "no-such"),
        (("deliveries", "no-such", "--status", "lost"), 2, "not one of"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_an_exit_code(
    zone_qd: Qd, words: tuple[str, ...], code: int, said: str
) -> None:
    done = zone_qd("webhook", *words)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
