"""Members in panes of a real tmux, by a real server on its unix socket: made, told, looked at, and ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from statistics import median

import httpx
import pytest

from quarterdeck.http.auth import Grant
from quarterdeck.tmux.host import this_host
from tests.support.databases import SqliteDatabases
from tests.support.eventually import eventually
from tests.support.server import ServerProcess, Servers, launch_on
from tests.support.tmux import FakeAgentLog, TmuxServer, is_alive, needs_tmux, shared_tmux

__all__ = ["shared_tmux"]
pytestmark = needs_tmux
EXIT_SECONDS = 1.5
MEMBERS = 46
Document = dict[str, object]


@dataclass
class Deck:
    """A fleet whose director sits in the first pane of a tmux server."""

    server: ServerProcess
    tmux: TmuxServer
    client: httpx.AsyncClient
    fleet_id: int = 0
    director_id: int = 0

    async def ask(self, method: str, path: str, body: object = None, status: int = 200) -> Document:
        answer = await self.client.request(method, f"/api/v1/fleets{path}", json=body)
        assert answer.status_code == status, answer.text
        told: Document = answer.json()
        return told

    @property
    def own(self) -> Document:
        return {"socket": self.tmux.socket, "pane_id": self.tmux.pane}

    def path(self, *parts: object) -> str:
        return "/" + "/".join(map(str, (self.fleet_id, *parts)))

    async def create(self, status: int = 201, **said: object) -> Document:
        plain = {"name": "alice", "description": "d", "director_id": self.director_id, "pane": self.own}
        return await self.ask("POST", self.path("members"), plain | said, status)

    async def delete(self, member: Document, status: int = 200, force: bool = False) -> Document:
        path = self.path("members", member["agent_id"]) + ("?force=true" if force else "")
        return await self.ask("DELETE", path, None, status)

    async def send(self, to: Document, text: str = "hello") -> Document:
        said = {"from_agent_id": self.director_id, "to_agent_id": to["agent_id"], "text": text}
        return await self.ask("POST", self.path("messages"), said, 201)

    async def received(self, message: Document) -> Document:
        """The message, once it has its receipt."""
        found = message

        async def has_it() -> bool:
            nonlocal found
            found = await self.ask("GET", self.path("messages", message["id"]))
            return found["notified_at"] is not None or found["notice"] is not None

        await eventually(has_it, "a message had its receipt")
        return found

    async def statuses(self) -> dict[object, object]:
        told = await self.ask("GET", self.path("members") + "?status=all")
        return {member["agent_id"]: member["status"] for member in _listed(told, "members")}

    def heard(self, member: Document) -> FakeAgentLog:
        return self.tmux.wait_for_agent_log(self.tmux.pid_of(pane_of(member)))


def _listed(told: Document, name: str) -> list[Document]:
    found = told[name]
    assert isinstance(found, list)
    return found


def pane_of(member: Document) -> str:
    placement = member["placement"]
    assert isinstance(placement, Mapping)
    return str(placement["tmux_pane_id"])


@pytest.fixture(scope="module")
def pane_server(tmp_path_factory: pytest.TempPathFactory, sqlite_databases: SqliteDatabases) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("station")
    started = Servers(directory)
    try:
        launch = launch_on(sqlite_databases.create_migrated(directory), directory)
        yield asyncio.run(started.start(launch.with_environment(QD_FLEET_EXIT_SECONDS=str(EXIT_SECONDS))))
    finally:
        started.close()


@pytest.fixture
async def member_panes(pane_server: ServerProcess, shared_tmux: TmuxServer) -> AsyncIterator[Deck]:
    async with over_socket(pane_server, pane_server.admin_token) as client:
        made = Deck(pane_server, shared_tmux, client)
        told = await made.ask("POST", "", {"pane": made.own}, 201)
        director = told["director"]
        assert isinstance(told["fleet_id"], int)
        assert isinstance(director, Mapping)
        made.fleet_id, made.director_id = told["fleet_id"], director["agent_id"]
        yield made
        shared_tmux.run_tmux("set-environment", "-gu", "FAKE")
        await made.ask("DELETE", made.path())


def over_socket(server: ServerProcess, token: str) -> httpx.AsyncClient:
    record = json.loads((server.launch.data / "server.json").read_text())
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=record["socket"]),
        base_url="http://local",
        headers={"Authorization": f"Bearer {token}"},
        timeout=30.0,
    )


# -- making


async def test_a_fleet_that_is_created_inside_tmux_has_its_director_in_that_pane(member_panes: Deck) -> None:
    found = await member_panes.ask("GET", member_panes.path("members", member_panes.director_id))
    placement = found["placement"]
    assert isinstance(placement, Mapping)
    host = this_host()
    assert (placement["tmux_session"], placement["tmux_window_id"], placement["tmux_pane_id"]) == (
        "main",
        member_panes.tmux.window,
        member_panes.tmux.pane,
    )
    assert (placement["host_id"], placement["user_id"]) == (host.id, host.user_id)
    assert (placement["tmux_socket"], placement["tmux_pid"]) == (member_panes.tmux.socket, member_panes.tmux.pid)


async def test_a_pane_is_looked_up_and_never_believed(member_panes: Deck) -> None:
    for wrong in ({**member_panes.own, "pane_id": "%999"}, {**member_panes.own, "socket": "/nowhere/at/all"}):
        refused = await member_panes.ask("POST", "", {"pane": wrong}, 400)
        assert refused["error"] == "unknown_pane"
    refused = await member_panes.ask("POST", "", {"pane": member_panes.own, "coding_agent": "nobody-knows"}, 400)
    assert refused["error"] == "unknown_coding_agent"


async def test_panes_are_for_those_alone_who_hold_the_scope_and_come_over_the_socket(member_panes: Deck) -> None:
    member = await member_panes.create()
    path = f"/api/v1/fleets{member_panes.path('members', member['agent_id'])}"
    scopes = ("agent:lifecycle", "coordinator.admin", "quarterdeck.admin")
    grant = Grant(zone_id="default", client_id="a", subject="a", sid="a", scopes=scopes)
    token = member_panes.server.issuer.mint(grant, 60)
    asked: list[tuple[str, str, Document | None]] = [
        ("GET", f"{path}/capture", None),
        ("POST", f"{path}/send-input", {"text": "x"}),
        ("POST", f"{path}/exec", {"text": "x"}),
        ("POST", f"{path}/ping", None),
        ("DELETE", path, None),
        ("DELETE", f"{path}?force=true", None),
        ("POST", "/api/v1/fleets", {"pane": member_panes.own}),
        (
            "POST",
            f"/api/v1/fleets{member_panes.path('members')}",
            {"name": "x", "description": "", "director_id": member_panes.director_id, "pane": member_panes.own},
        ),
    ]
    for client, code in (
        (member_panes.server.client(), "local_socket_only"),
        (over_socket(member_panes.server, token), "missing_scope"),
    ):
        async with client:
            for method, url, body in asked:
                answer = await client.request(method, url, json=body)
                assert (answer.status_code, answer.json()["error"]) == (403, code), (method, url)
    assert member_panes.heard(member).lines == []
    assert (await member_panes.statuses())[member["agent_id"]] == "active"


async def test_a_member_begins_in_a_pane_of_its_directors_window_and_can_act_as_itself_alone(
    member_panes: Deck,
) -> None:
    member = await member_panes.create(model="m", prompt="be quick")
    pane = pane_of(member)
    assert member_panes.tmux.run_tmux("display-message", "-p", "-t", pane, "#{window_id}") == member_panes.tmux.window
    heard = member_panes.heard(member)
    assert heard.argv == [*("--permission-mode", "dontAsk", "--name", "alice", "--model", "m"), "be quick"]
    told = heard.environment
    assert (told["QD_FLEET_ID"], told["QD_AGENT_ID"]) == (str(member_panes.fleet_id), str(member["agent_id"]))
    assert told["QD_URL"].startswith("unix:")
    async with over_socket(member_panes.server, told["QD_TOKEN"]) as itself:
        url = f"/api/v1/fleets{member_panes.path('messages')}"
        said = {"from_agent_id": member["agent_id"], "to_agent_id": member_panes.director_id, "text": "aye"}
        assert (await itself.post(url, json=said)).status_code == 201
        as_another = said | {"from_agent_id": member_panes.director_id, "to_agent_id": member["agent_id"]}
        refused = await itself.post(url, json=as_another)
        assert (refused.status_code, refused.json()["error"]) == (403, "not_oneself")
        refused = await itself.get(f"/api/v1/fleets{member_panes.path('members', member['agent_id'])}/capture")
        assert refused.status_code == 403
        await member_panes.delete(member)
        assert (await itself.post(url, json=said)).status_code == 401


async def test_without_a_prompt_a_member_is_told_who_it_is_and_how_to_talk(member_panes: Deck) -> None:
    member = await member_panes.create(coding_agent="opencode")
    [*_, flag, prompt] = member_panes.heard(member).argv
    assert flag == "--prompt"
    for said in (f"agent {member['agent_id']}", f"agent {member_panes.director_id}", "message poll", "ack", "send"):
        assert said in prompt


async def test_what_cannot_be_begun_leaves_neither_a_pane_nor_a_member(member_panes: Deck) -> None:
    panes, members = member_panes.tmux.list_panes(), await member_panes.statuses()
    codex = member_panes.tmux.bin / "codex"
    codex.unlink()
    refused = await member_panes.create(409, coding_agent="codex")
    assert refused["error"] == "pane_not_made"
    assert "codex" in str(refused["detail"])
    codex.write_text("#!/bin/sh\nexit 3\n")
    codex.chmod(0o755)
    refused = await member_panes.create(409, coding_agent="codex")
    assert refused["error"] == "pane_not_made"
    member_panes.tmux.install_fake_agent("codex")
    assert member_panes.tmux.list_panes() == panes
    after = await member_panes.statuses()
    assert {number: after[number] for number in members} == members
    assert {after[number] for number in after.keys() - members.keys()} <= {"deregistered"}


# -- telling


async def test_what_is_sent_is_typed_into_the_members_pane(member_panes: Deck) -> None:
    member = await member_panes.create()
    told = await member_panes.received(await member_panes.send(member, "tidy up"))
    assert told["notified_at"] is not None
    assert told["notice"] is None

    async def has_heard() -> bool:
        return any(line.endswith("] tidy up") for line in member_panes.heard(member).lines)

    await eventually(has_heard, "the agent had heard it")


async def test_a_fleet_of_46_is_told_within_two_seconds_though_one_hangs_and_nobody_else_waits(
    member_panes: Deck,
) -> None:
    members = [await member_panes.create(name=f"m{number}") for number in range(MEMBERS)]
    ashore = await member_panes.ask(
        "POST", member_panes.path("members"), {"name": "ashore", "description": "no pane"}, 201
    )
    hangs = member_panes.heard(members[0]).pid
    os.kill(hangs, signal.SIGSTOP)
    said = {"from_agent_id": member_panes.director_id, "to_agent_id": "*", "text": "all hands", "wait_ms": 10_000}
    telling = asyncio.create_task(member_panes.ask("POST", member_panes.path("messages"), said, 201))
    waits = await waited_meanwhile(member_panes, ashore, telling)
    told = await telling
    os.kill(hangs, signal.SIGCONT)
    assert (told["recipients"], told["delivered"]) == (MEMBERS + 1, MEMBERS)
    took = [await told_after(member_panes, member) for member in members]
    assert max(took) < 2.0, f"{MEMBERS} panes took up to {max(took):.2f} s"
    # Meanwhile others went on: none of them had to wait for the panes.
    assert len(waits) >= 10
    assert median(waits) < 0.05, f"half of {len(waits)} waited for {median(waits):.3f} s"
    assert max(waits) < 0.5, f"one of {len(waits)} waited for {max(waits):.3f} s"


async def waited_meanwhile(deck: Deck, ashore: Document, telling: asyncio.Task[Document]) -> list[float]:
    """How long each command took of one who is sent to, polls and acknowledges until everybody has been told."""
    waits: list[float] = []

    async def timed(asked: Awaitable[Document]) -> Document:
        began = time.monotonic()
        told = await asked
        waits.append(time.monotonic() - began)
        return told

    while not telling.done():
        sent = await timed(deck.send(ashore))
        await timed(deck.ask("GET", deck.path("members", ashore["agent_id"], "inbox")))
        as_itself = {"agent_id": ashore["agent_id"]}
        await timed(deck.ask("POST", deck.path("messages", sent["id"], "ack"), as_itself))
    return waits


async def told_after(deck: Deck, member: Document) -> float:
    """How long after it was sent the one message of a member was typed, which its agent has heard."""
    inbox = await deck.ask("GET", deck.path("members", member["agent_id"], "inbox"))
    [message] = _listed(inbox, "messages")
    assert message["notice"] is None
    sent, notified = (datetime.fromisoformat(str(message[name])) for name in ("created_at", "notified_at"))

    async def has_heard() -> bool:
        return [line.endswith("] all hands") for line in deck.heard(member).lines] == [True]

    await eventually(has_heard, "the agent had heard it")
    return (notified - sent).total_seconds()


async def test_a_pane_is_looked_at_typed_into_and_pinged(member_panes: Deck) -> None:
    member = await member_panes.create()
    path = member_panes.path("members", member["agent_id"])
    for verb, body in (("send-input", {"text": "by hand"}), ("exec", {"text": "ls"}), ("ping", None)):
        typed = await member_panes.ask("POST", f"{path}/{verb}", body)
        assert typed["pane_id"] == pane_of(member)

    async def has_heard() -> bool:
        return len(member_panes.heard(member).lines) == 3

    await eventually(has_heard, "the agent had heard all three")
    by_hand, command, ping = member_panes.heard(member).lines
    assert (by_hand, command) == ("by hand", "! ls")
    assert "qd message poll" in ping
    shown = await member_panes.ask("GET", f"{path}/capture?lines=5")
    assert "by hand" in str(shown["text"])


async def test_nothing_is_typed_by_hand_where_no_agent_hears_it(member_panes: Deck) -> None:
    member_panes.tmux.run_tmux("set-environment", "-g", "FAKE", "shell")
    member = await member_panes.create()
    path = member_panes.path("members", member["agent_id"])
    await member_panes.ask("POST", f"{path}/send-input", {"text": "/exit"})
    trap = member_panes.tmux.home / "executed"

    async def is_refused() -> bool:
        answer = await member_panes.client.post(f"/api/v1/fleets{path}/send-input", json={"text": "true"})
        return answer.status_code == 409

    await eventually(is_refused, "the agent had left")
    refused = await member_panes.ask("POST", f"{path}/exec", {"text": f"touch {trap}"}, 409)
    assert (refused["error"], refused["notice"]) == ("pane_out_of_reach", "not_the_agent")
    assert (await member_panes.received(await member_panes.send(member, f"touch {trap}")))["notice"] == "not_the_agent"
    assert not trap.exists()
    gone = await member_panes.delete(member)
    assert (gone["pane"], gone["pane_id"]) == ("not_the_agent", pane_of(member)), "it says what was left"
    assert pane_of(member) in member_panes.tmux.list_panes()
    member_panes.tmux.run_tmux("kill-pane", "-t", pane_of(member))


# -- ending


async def test_a_member_is_told_to_exit_and_deregistered_when_its_pane_has_gone(member_panes: Deck) -> None:
    member = await member_panes.create()
    pid = member_panes.heard(member).pid
    gone = await member_panes.delete(member)
    assert (gone["pane"], gone["name"]) == ("exited", "alice")
    assert pane_of(member) not in member_panes.tmux.list_panes()
    assert member_panes.tmux.wait_for_agent_log(pid).lines == ["/exit"]
    assert (await member_panes.statuses())[member["agent_id"]] == "deregistered"
    assert (await member_panes.delete(member, 404))["error"] == "fleet_member_not_found"


async def test_one_that_does_not_leave_stays_registered_until_its_fleet_is_deleted(member_panes: Deck) -> None:
    exits = await member_panes.create()
    member_panes.tmux.run_tmux("set-environment", "-g", "FAKE", "stubborn")
    stays = await member_panes.create(name="bob")
    pid = member_panes.heard(stays).pid
    refused = await member_panes.delete(stays, 409)
    assert refused["error"] == "member_still_there"
    assert "heard /exit" in str(refused["tail"])
    assert (await member_panes.statuses())[stays["agent_id"]] == "active"
    assert pane_of(stays) in member_panes.tmux.list_panes()
    done = await member_panes.ask("DELETE", member_panes.path())
    assert (done["deregistered_count"], done["panes_closed"]) == (4, 2)
    left = member_panes.tmux.list_panes()
    assert member_panes.tmux.pane in left, "the director's pane is its user's own"
    assert not {pane_of(exits), pane_of(stays)} & set(left)
    assert not is_alive(pid)
    again = await member_panes.ask("DELETE", member_panes.path())
    assert (again["deregistered_count"], again["panes_closed"]) == (0, 0)


async def test_force_leaves_no_process_behind(member_panes: Deck) -> None:
    member_panes.tmux.run_tmux("set-environment", "-g", "FAKE", "family")
    member = await member_panes.create()

    async def has_children() -> bool:
        return len(member_panes.heard(member).children) == 2

    await eventually(has_children, "it had begun others")
    family = [member_panes.heard(member).pid, *member_panes.heard(member).children]
    assert (await member_panes.delete(member, force=True))["pane"] == "killed"
    assert not [pid for pid in family if is_alive(pid)]
    assert pane_of(member) not in member_panes.tmux.list_panes()
    assert (await member_panes.statuses())[member["agent_id"]] == "deregistered"


async def test_a_pane_that_is_gone_already_is_no_reason_to_keep_its_member(member_panes: Deck) -> None:
    member = await member_panes.create()
    member_panes.tmux.run_tmux("kill-pane", "-t", pane_of(member))
    assert (await member_panes.delete(member))["pane"] == "pane_gone"


async def test_the_director_is_not_told_to_leave_by_who_may_not_delete_it(member_panes: Deck) -> None:
    shown = member_panes.tmux.capture(member_panes.tmux.pane)
    refused = await member_panes.ask(
        "DELETE", member_panes.path("members", member_panes.director_id) + "?force=true", None, 409
    )
    assert refused["error"] == "director_protected"
    assert member_panes.tmux.capture(member_panes.tmux.pane) == shown
