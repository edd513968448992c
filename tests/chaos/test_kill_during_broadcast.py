"""The server is killed during broadcasts.

An answered message reached every recipient once. An unanswered one reached all recipients or none. A repeated request
with the same key returns the message that was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from quarterdeck.core.caller import Role
from tests.support.raw_http import RawResponse, build_request, send_all
from tests.support.rounds import ROUNDS
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.spawn_load import SpawnLoad
from tests.support.zone import FreshZone, create_zone

FLEET = "/api/v1/fleets/1"
DIRECTOR, ADMINISTRATOR = 1, 2
MEMBERS = 12
RECIPIENTS = range(ADMINISTRATOR + 1, ADMINISTRATOR + 1 + MEMBERS)
KILLS = max(1, ROUNDS // 2)


class MessageLoad(SpawnLoad):
    """Each client sends one message after the other: one client in four to one member, the others to all members.

    The text of a message is its key.
    """

    def build_request(self, key: str) -> bytes:
        body = {"from_agent_id": DIRECTOR, "to_agent_id": recipient_of(key), "text": key}
        return build_request("POST", f"{FLEET}/messages", self.token, body, Idempotency_Key=key)

    def created_id(self, response: RawResponse) -> str:
        content = response.json()
        return str(content.get("summary", content)["id"])


def recipient_of(key: str) -> int | str:
    _, client, number = map(int, key.split("-"))
    return RECIPIENTS[number % MEMBERS] if client % 4 == 0 else "*"


@dataclass(frozen=True)
class StoredMessage:
    """A stored message or broadcast."""

    id: str
    """The id of the message, or of the broadcast's summary."""
    recipients: list[int]

    def is_complete(self, key: str) -> bool:
        recipient = recipient_of(key)
        return self.recipients == ([*RECIPIENTS] if recipient == "*" else [recipient])


async def test_killed_server_delivers_answered_messages_once_and_others_to_all_or_none(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    await create_fleet(zone)
    acknowledged: dict[str, str] = {}
    for number in range(KILLS):
        load = MessageLoad(zone, name=f"{number}-")
        await load.wait_for_acknowledged(40 + number % 20)
        server.kill()
        await load.wait_until_done()
        assert load.statuses.keys() == {201}
        acknowledged |= load.acknowledged
        unanswered = load.unanswered | load.cut_short
        assert unanswered, "no request was in flight when the server was killed"
        assert_delivered(read_stored(launch.database_url, zone.id), acknowledged, unanswered)

        server = await servers.start(launch)
        zone = FreshZone(server, zone.id)
        acknowledged |= await repeat(zone, load, sorted(unanswered))
        repeated_keys = sorted(load.acknowledged)[:MEMBERS]
        assert await repeat(zone, load, repeated_keys, {200}) == {key: acknowledged[key] for key in repeated_keys}
        assert_delivered(read_stored(launch.database_url, zone.id), acknowledged)
    await assert_polled_once(zone, acknowledged)


async def create_fleet(zone: FreshZone) -> None:
    async with zone.client(zone.token(role=Role.OWNER)) as client:
        requests: list[tuple[str, dict[str, str]]] = [("/api/v1/fleets", {})]
        requests += [(f"{FLEET}/members", {"name": f"m{n}", "description": ""}) for n in RECIPIENTS]
        for path, body in requests:
            response = await client.post(path, json=body)
            assert response.status_code == 201, response.text


async def repeat(
    zone: FreshZone, load: MessageLoad, keys: list[str], statuses: Collection[int] = (200, 201)
) -> dict[str, str]:
    """Repeat the requests of these keys. Returns the ids: of the message sent before, or of a new one."""
    responses = await send_all(zone.server.url, [load.build_request(key) for key in keys])
    assert {response.status for response in responses} <= set(statuses)
    return {key: load.created_id(response) for key, response in zip(keys, responses, strict=True)}


def read_stored(url: str, zone_id: str) -> dict[str, list[StoredMessage]]:
    """All stored messages by key. A broadcast has the id of its summary."""
    rows = DirectDatabase(url).execute(
        "select coalesce(origin_task_id, task_id), to_agent_id, text, type from messages where zone_id = ? "
        "order by to_agent_id",
        zone_id,
    )
    summaries = {str(id) for id, _, _, message_type in rows if message_type == "broadcast_summary"}
    recipients_by_id: dict[tuple[str, str], list[int]] = defaultdict(list)
    for id, recipient, text, message_type in rows:
        if message_type == "unicast":
            recipients_by_id[str(text), str(id)].append(int(str(recipient)))
    messages_by_key: dict[str, list[StoredMessage]] = defaultdict(list)
    for (key, id), recipients in recipients_by_id.items():
        assert recipient_of(key) != "*" or id in summaries, "a delivery without its broadcast summary"
        messages_by_key[key].append(StoredMessage(id, recipients))
    assert summaries == {
        message.id for key in messages_by_key if recipient_of(key) == "*" for message in messages_by_key[key]
    }
    return messages_by_key


def assert_delivered(
    stored: dict[str, list[StoredMessage]], acknowledged: dict[str, str], unanswered: Iterable[str] = ()
) -> None:
    """Assert that each acknowledged message is stored once for each recipient, that each unanswered one is stored
    likewise or not at all, and that nothing else is stored."""
    assert stored.keys() - acknowledged.keys() <= {*unanswered}
    for key, messages in stored.items():
        [message] = messages
        assert message.is_complete(key), f"{key} reached {message.recipients}"
        assert message.id == acknowledged.get(key, message.id)
    assert not acknowledged.keys() - stored.keys(), "an acknowledged message is missing"


async def assert_polled_once(zone: FreshZone, acknowledged: dict[str, str]) -> None:
    """Assert that the inbox of the first member has each of its messages once."""
    expected = sorted(key for key in acknowledged if recipient_of(key) in ("*", RECIPIENTS[0]))
    texts: list[str] = []
    async with zone.client() as client:
        after = 0
        while True:
            query: dict[str, str | int] = {"status": "input_required", "order": "asc", "limit": 500, "after": after}
            response = await client.get(f"{FLEET}/members/{RECIPIENTS[0]}/inbox", params=query)
            assert response.status_code == 200, response.text
            page = response.json()["messages"]
            if not page:
                break
            texts += [message["text"] for message in page]
            after = page[-1]["task_id"]
    assert sorted(texts) == expected
