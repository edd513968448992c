"""Members in tmux panes, through a real server and its Unix socket: created, notified, captured and deleted."""

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
JsonObject = dict[str, object]


@dataclass
class PaneFleetClient:
    """Requests for a fleet whose director is in the first pane of a tmux server."""

    server: ServerProcess
    tmux: TmuxServer
    client: httpx.AsyncClient
    fleet_id: int = 0
    director_id: int = 0

    async def request(self, method: str, path: str, body: object = None, status: int = 200) -> JsonObject:
        response = await self.client.request(method, f"/api/v1/fleets{path}", json=body)
        assert response.status_code == status, response.text
        content: JsonObject = response.json()
        return content

    @property
    def own_pane(self) -> JsonObject:
        return {"socket": self.tmux.socket, "pane_id": self.tmux.pane}

    def path(self, *parts: object) -> str:
        return "/" + "/".join(map(str, (self.fleet_id, *parts)))

    async def create(self, status: int = 201, **fields: object) -> JsonObject:
        defaults = {"name": "alice", "description": "d", "director_id": self.director_id, "pane": self.own_pane}
        return await self.request("POST", self.path("members"), defaults | fields, status)

    async def delete(self, member: JsonObject, status: int = 200, force: bool = False) -> JsonObject:
        path = self.path("members", member["agent_id"]) + ("?force=true" if force else "")
        return await self.request("DELETE", path, None, status)

    async def send(self, recipient: JsonObject, text: str = "hello") -> JsonObject:
        body = {"from_agent_id": self.director_id, "to_agent_id": recipient["agent_id"], "text": text}
        return await self.request("POST", self.path("messages"), body, 201)

    async def wait_for_receipt(self, message: JsonObject) -> JsonObject:
        """Wait until the message has its receipt and return it."""
        current = message

        async def has_receipt() -> bool:
            nonlocal current
            current = await self.request("GET", self.path("messages", message["id"]))
            return current["notified_at"] is not None or current["notice"] is not None

        await eventually(has_receipt, "a message had its receipt")
        return current

    async def statuses(self) -> dict[object, object]:
        page = await self.request("GET", self.path("members") + "?status=all")
        return {member["agent_id"]: member["status"] for member in _items(page, "members")}

    def agent_log(self, member: JsonObject) -> FakeAgentLog:
        return self.tmux.wait_for_agent_log(self.tmux.pid_of(pane_of(member)))


def _items(page: JsonObject, name: str) -> list[JsonObject]:
    items = page[name]
    assert isinstance(items, list)
    return items


def pane_of(member: JsonObject) -> str:
    placement = member["placement"]
    assert isinstance(placement, Mapping)
    return str(placement["tmux_pane_id"])


@pytest.fixture(scope="module")
def pane_server(tmp_path_factory: pytest.TempPathFactory, sqlite_databases: SqliteDatabases) -> Iterator[ServerProcess]:
    directory = tmp_path_factory.mktemp("panes")
    servers = Servers(directory)
    try:
        launch = launch_on(sqlite_databases.create_migrated(directory), directory)
        yield asyncio.run(servers.start(launch.with_environment(QD_FLEET_EXIT_SECONDS=str(EXIT_SECONDS))))
    finally:
        servers.close()


@pytest.fixture
async def fleet(pane_server: ServerProcess, shared_tmux: TmuxServer) -> AsyncIterator[PaneFleetClient]:
    async with socket_client(pane_server, pane_server.admin_token) as client:
        fleet = PaneFleetClient(pane_server, shared_tmux, client)
        created = await fleet.request("POST", "", {"pane": fleet.own_pane}, 201)
        director = created["director"]
        assert isinstance(created["fleet_id"], int)
        assert isinstance(director, Mapping)
        fleet.fleet_id, fleet.director_id = created["fleet_id"], director["agent_id"]
        yield fleet
        shared_tmux.run_tmux("set-environment", "-gu", "FAKE")
        await fleet.request("DELETE", fleet.path())


def socket_client(server: ServerProcess, token: str) -> httpx.AsyncClient:
    record = json.loads((server.launch.data / "server.json").read_text())
    return httpx.AsyncClient(
        transport=httpx.AsyncHTTPTransport(uds=record["socket"]),
        base_url="http://local",
        headers={"Authorization": f"Bearer {token}"},
        timeout=30.0,
    )


# -- creating


async def test_fleet_created_in_tmux_places_its_director_in_that_pane(fleet: PaneFleetClient) -> None:
    director = await fleet.request("GET", fleet.path("members", fleet.director_id))
    placement = director["placement"]
    assert isinstance(placement, Mapping)
    host = this_host()
    assert (placement["tmux_session"], placement["tmux_window_id"], placement["tmux_pane_id"]) == (
        "main",
        fleet.tmux.window,
        fleet.tmux.pane,
    )
    assert (placement["host_id"], placement["user_id"]) == (host.id, host.user_id)
    assert (placement["tmux_socket"], placement["tmux_pid"]) == (fleet.tmux.socket, fleet.tmux.pid)


async def test_pane_and_coding_agent_of_a_request_are_verified(fleet: PaneFleetClient) -> None:
    for pane in ({**fleet.own_pane, "pane_id": "%999"}, {**fleet.own_pane, "socket": "/missing/socket"}):
        refused = await fleet.request("POST", "", {"pane": pane}, 400)
        assert refused["error"] == "unknown_pane"
    refused = await fleet.request("POST", "", {"pane": fleet.own_pane, "coding_agent": "unknown-agent"}, 400)
    assert refused["error"] == "unknown_coding_agent"


async def test_pane_routes_require_the_scope_and_the_unix_socket(fleet: PaneFleetClient) -> None:
    member = await fleet.create()
    path = f"/api/v1/fleets{fleet.path('members', member['agent_id'])}"
    scopes = ("agent:lifecycle", "coordinator.admin", "quarterdeck.admin")
    grant = Grant(zone_id="default", client_id="a", subject="a", sid="a", scopes=scopes)
    token = fleet.server.issuer.mint(grant, 60)
    requests: list[tuple[str, str, JsonObject | None]] = [
        ("GET", f"{path}/capture", None),
        ("POST", f"{path}/send-input", {"text": "x"}),
        ("POST", f"{path}/exec", {"text": "x"}),
        ("POST", f"{path}/ping", None),
        ("DELETE", path, None),
        ("DELETE", f"{path}?force=true", None),
        ("POST", "/api/v1/fleets", {"pane": fleet.own_pane}),
        (
            "POST",
            f"/api/v1/fleets{fleet.path('members')}",
            {"name": "x", "description": "", "director_id": fleet.director_id, "pane": fleet.own_pane},
        ),
    ]
    for client, code in (
        (fleet.server.client(), "local_socket_only"),
        (socket_client(fleet.server, token), "missing_scope"),
    ):
        async with client:
            for method, url, body in requests:
                response = await client.request(method, url, json=body)
                assert (response.status_code, response.json()["error"]) == (403, code), (method, url)
    assert fleet.agent_log(member).lines == []
    assert (await fleet.statuses())[member["agent_id"]] == "active"


async def test_member_starts_in_its_directors_window_with_a_token_only_for_itself(fleet: PaneFleetClient) -> None:
    member = await fleet.create(model="m", prompt="prompt")
    pane = pane_of(member)
    assert fleet.tmux.run_tmux("display-message", "-p", "-t", pane, "#{window_id}") == fleet.tmux.window
    agent_log = fleet.agent_log(member)
    assert agent_log.argv == [*("--permission-mode", "dontAsk", "--name", "alice", "--model", "m"), "prompt"]
    environment = agent_log.environment
    assert (environment["QD_FLEET_ID"], environment["QD_AGENT_ID"]) == (str(fleet.fleet_id), str(member["agent_id"]))
    assert environment["QD_URL"].startswith("unix:")
    async with socket_client(fleet.server, environment["QD_TOKEN"]) as member_client:
        url = f"/api/v1/fleets{fleet.path('messages')}"
        message = {"from_agent_id": member["agent_id"], "to_agent_id": fleet.director_id, "text": "hello"}
        assert (await member_client.post(url, json=message)).status_code == 201
        as_director = message | {"from_agent_id": fleet.director_id, "to_agent_id": member["agent_id"]}
        refused = await member_client.post(url, json=as_director)
        assert (refused.status_code, refused.json()["error"]) == (403, "not_oneself")
        refused = await member_client.get(f"/api/v1/fleets{fleet.path('members', member['agent_id'])}/capture")
        assert refused.status_code == 403
        await fleet.delete(member)
        assert (await member_client.post(url, json=message)).status_code == 401


async def test_default_prompt_names_the_member_its_director_and_the_message_commands(fleet: PaneFleetClient) -> None:
    member = await fleet.create(coding_agent="opencode")
    [*_, flag, prompt] = fleet.agent_log(member).argv
    assert flag == "--prompt"
    for part in (f"agent {member['agent_id']}", f"agent {fleet.director_id}", "message poll", "ack", "send"):
        assert part in prompt


async def test_failed_start_leaves_no_pane_and_no_active_member(fleet: PaneFleetClient) -> None:
    panes, members = fleet.tmux.list_panes(), await fleet.statuses()
    codex = fleet.tmux.bin / "codex"
    codex.unlink()
    refused = await fleet.create(409, coding_agent="codex")
    assert refused["error"] == "pane_not_made"
    assert "codex" in str(refused["detail"])
    codex.write_text("#!/bin/sh\nexit 3\n")
    codex.chmod(0o755)
    refused = await fleet.create(409, coding_agent="codex")
    assert refused["error"] == "pane_not_made"
    fleet.tmux.install_fake_agent("codex")
    assert fleet.tmux.list_panes() == panes
    after = await fleet.statuses()
    assert {agent_id: after[agent_id] for agent_id in members} == members
    assert {after[agent_id] for agent_id in after.keys() - members.keys()} <= {"deregistered"}


# -- notices and input


async def test_message_is_typed_into_the_members_pane(fleet: PaneFleetClient) -> None:
    member = await fleet.create()
    message = await fleet.wait_for_receipt(await fleet.send(member, "message text"))
    assert message["notified_at"] is not None
    assert message["notice"] is None

    async def has_line() -> bool:
        return any(line.endswith("] message text") for line in fleet.agent_log(member).lines)

    await eventually(has_line, "the agent read the message")


async def test_broadcast_to_46_panes_takes_under_2_seconds_and_delays_no_other_request(fleet: PaneFleetClient) -> None:
    members = [await fleet.create(name=f"m{number}") for number in range(MEMBERS)]
    without_pane = await fleet.request(
        "POST", fleet.path("members"), {"name": "without-pane", "description": "no pane"}, 201
    )
    stopped_pid = fleet.agent_log(members[0]).pid
    os.kill(stopped_pid, signal.SIGSTOP)
    body = {"from_agent_id": fleet.director_id, "to_agent_id": "*", "text": "broadcast text", "wait_ms": 10_000}
    broadcast = asyncio.create_task(fleet.request("POST", fleet.path("messages"), body, 201))
    latencies = await measure_latencies(fleet, without_pane, broadcast)
    result = await broadcast
    os.kill(stopped_pid, signal.SIGCONT)
    assert (result["recipients"], result["delivered"]) == (MEMBERS + 1, MEMBERS)
    delays = [await notice_delay(fleet, member) for member in members]
    assert max(delays) < 2.0, f"{MEMBERS} panes took up to {max(delays):.2f} s"
    # Other requests did not wait for the panes.
    assert len(latencies) >= 10
    assert median(latencies) < 0.05, f"half of {len(latencies)} requests took {median(latencies):.3f} s"
    assert max(latencies) < 0.5, f"one of {len(latencies)} requests took {max(latencies):.3f} s"


async def measure_latencies(
    fleet: PaneFleetClient, member: JsonObject, broadcast: asyncio.Task[JsonObject]
) -> list[float]:
    """Send to, poll and acknowledge for this member until the broadcast is done. Returns the time of each request."""
    latencies: list[float] = []

    async def timed(request: Awaitable[JsonObject]) -> JsonObject:
        started = time.monotonic()
        content = await request
        latencies.append(time.monotonic() - started)
        return content

    while not broadcast.done():
        sent = await timed(fleet.send(member))
        await timed(fleet.request("GET", fleet.path("members", member["agent_id"], "inbox")))
        body = {"agent_id": member["agent_id"]}
        await timed(fleet.request("POST", fleet.path("messages", sent["id"], "ack"), body))
    return latencies


async def notice_delay(fleet: PaneFleetClient, member: JsonObject) -> float:
    """Seconds from sending the member's only message to typing it. The agent must have read it once."""
    inbox = await fleet.request("GET", fleet.path("members", member["agent_id"], "inbox"))
    [message] = _items(inbox, "messages")
    assert message["notice"] is None
    sent, notified = (datetime.fromisoformat(str(message[name])) for name in ("created_at", "notified_at"))

    async def has_line() -> bool:
        return [line.endswith("] broadcast text") for line in fleet.agent_log(member).lines] == [True]

    await eventually(has_line, "the agent read the message")
    return (notified - sent).total_seconds()


async def test_pane_is_captured_typed_into_and_pinged(fleet: PaneFleetClient) -> None:
    member = await fleet.create()
    path = fleet.path("members", member["agent_id"])
    for verb, body in (("send-input", {"text": "typed text"}), ("exec", {"text": "ls"}), ("ping", None)):
        typed = await fleet.request("POST", f"{path}/{verb}", body)
        assert typed["pane_id"] == pane_of(member)

    async def has_all_lines() -> bool:
        return len(fleet.agent_log(member).lines) == 3

    await eventually(has_all_lines, "the agent read all three lines")
    typed_line, command, ping = fleet.agent_log(member).lines
    assert (typed_line, command) == ("typed text", "! ls")
    assert "qd message poll" in ping
    captured = await fleet.request("GET", f"{path}/capture?lines=5")
    assert "typed text" in str(captured["text"])


async def test_nothing_is_typed_after_the_agent_left_its_pane(fleet: PaneFleetClient) -> None:
    fleet.tmux.run_tmux("set-environment", "-g", "FAKE", "shell")
    member = await fleet.create()
    path = fleet.path("members", member["agent_id"])
    await fleet.request("POST", f"{path}/send-input", {"text": "/exit"})
    trap = fleet.tmux.home / "executed"

    async def is_refused() -> bool:
        response = await fleet.client.post(f"/api/v1/fleets{path}/send-input", json={"text": "true"})
        return response.status_code == 409

    await eventually(is_refused, "the agent exited")
    refused = await fleet.request("POST", f"{path}/exec", {"text": f"touch {trap}"}, 409)
    assert (refused["error"], refused["notice"]) == ("pane_out_of_reach", "not_the_agent")
    assert (await fleet.wait_for_receipt(await fleet.send(member, f"touch {trap}")))["notice"] == "not_the_agent"
    assert not trap.exists()
    deleted = await fleet.delete(member)
    assert (deleted["pane"], deleted["pane_id"]) == ("not_the_agent", pane_of(member)), (
        "the response names the pane that stays open"
    )
    assert pane_of(member) in fleet.tmux.list_panes()
    fleet.tmux.run_tmux("kill-pane", "-t", pane_of(member))


# -- deleting


async def test_deleted_member_exits_and_is_deregistered_after_its_pane_closes(fleet: PaneFleetClient) -> None:
    member = await fleet.create()
    pid = fleet.agent_log(member).pid
    deleted = await fleet.delete(member)
    assert (deleted["pane"], deleted["name"]) == ("exited", "alice")
    assert pane_of(member) not in fleet.tmux.list_panes()
    assert fleet.tmux.wait_for_agent_log(pid).lines == ["/exit"]
    assert (await fleet.statuses())[member["agent_id"]] == "deregistered"
    assert (await fleet.delete(member, 404))["error"] == "fleet_member_not_found"


async def test_member_that_does_not_exit_stays_active_until_its_fleet_is_deleted(fleet: PaneFleetClient) -> None:
    exiting = await fleet.create()
    fleet.tmux.run_tmux("set-environment", "-g", "FAKE", "stubborn")
    stubborn = await fleet.create(name="bob")
    pid = fleet.agent_log(stubborn).pid
    refused = await fleet.delete(stubborn, 409)
    assert refused["error"] == "member_still_there"
    assert "received /exit" in str(refused["tail"])
    assert (await fleet.statuses())[stubborn["agent_id"]] == "active"
    assert pane_of(stubborn) in fleet.tmux.list_panes()
    deleted = await fleet.request("DELETE", fleet.path())
    assert (deleted["deregistered_count"], deleted["panes_closed"]) == (4, 2)
    panes = fleet.tmux.list_panes()
    assert fleet.tmux.pane in panes, "the director's pane stays open"
    assert not {pane_of(exiting), pane_of(stubborn)} & set(panes)
    assert not is_alive(pid)
    repeated = await fleet.request("DELETE", fleet.path())
    assert (repeated["deregistered_count"], repeated["panes_closed"]) == (0, 0)


async def test_forced_delete_kills_every_process_of_the_pane(fleet: PaneFleetClient) -> None:
    fleet.tmux.run_tmux("set-environment", "-g", "FAKE", "family")
    member = await fleet.create()

    async def has_children() -> bool:
        return len(fleet.agent_log(member).children) == 2

    await eventually(has_children, "the agent started child processes")
    pids = [fleet.agent_log(member).pid, *fleet.agent_log(member).children]
    assert (await fleet.delete(member, force=True))["pane"] == "killed"
    assert not [pid for pid in pids if is_alive(pid)]
    assert pane_of(member) not in fleet.tmux.list_panes()
    assert (await fleet.statuses())[member["agent_id"]] == "deregistered"


async def test_member_whose_pane_is_gone_is_deleted(fleet: PaneFleetClient) -> None:
    member = await fleet.create()
    fleet.tmux.run_tmux("kill-pane", "-t", pane_of(member))
    assert (await fleet.delete(member))["pane"] == "pane_gone"


async def test_refused_delete_types_nothing_into_the_directors_pane(fleet: PaneFleetClient) -> None:
    captured = fleet.tmux.capture(fleet.tmux.pane)
    refused = await fleet.request("DELETE", fleet.path("members", fleet.director_id) + "?force=true", None, 409)
    assert refused["error"] == "director_protected"
    assert fleet.tmux.capture(fleet.tmux.pane) == captured
