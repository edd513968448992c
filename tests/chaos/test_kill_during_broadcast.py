"""The server is killed in the middle of broadcasts: what it answered has reached everybody once, what it did not answer
has reached everybody or nobody, and whoever asks again with the same key is told of the one that was sent."""

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

ONE = "/api/v1/fleets/1"
DIRECTOR, ADMINISTRATOR = 1, 2
MEMBERS = 12
RECIPIENTS = range(ADMINISTRATOR + 1, ADMINISTRATOR + 1 + MEMBERS)
KILLS = max(1, ROUNDS // 2)


class Messages(SpawnLoad):
    """Each client sends one message after the other: one client in four to one member, the others to all of them. What
    is said is the key, by which it is found again."""

    def build_request(self, key: str) -> bytes:
        body = {"from_agent_id": DIRECTOR, "to_agent_id": to_whom(key), "text": key}
        return build_request("POST", f"{ONE}/messages", self.token, body, Idempotency_Key=key)

    def created_id(self, response: RawResponse) -> str:
        told = response.json()
        return str(told.get("summary", told)["id"])


def to_whom(key: str) -> int | str:
    _, client, turn = map(int, key.split("-"))
    return RECIPIENTS[turn % MEMBERS] if client % 4 == 0 else "*"


@dataclass(frozen=True)
class Stored:
    """What the database holds of one key."""

    id: str
    """Of the message, or of the summary of the broadcast."""
    recipients: list[int]

    def is_whole(self, key: str) -> bool:
        whom = to_whom(key)
        return self.recipients == ([*RECIPIENTS] if whom == "*" else [whom])


async def test_what_a_killed_server_had_answered_is_delivered_once_and_the_rest_to_all_or_to_nobody(
    servers: Servers, launch: Launch
) -> None:
    server = await servers.start(launch)
    zone = await create_zone(server)
    await crewed(zone)
    known: dict[str, str] = {}
    for number in range(KILLS):
        load = Messages(zone, name=f"{number}-")
        await load.wait_for_acknowledged(40 + number % 20)
        server.kill()
        await load.wait_until_done()
        assert load.statuses.keys() == {201}
        known |= load.acknowledged
        unheard = load.unanswered | load.cut_short
        assert unheard, "nobody was being answered when it was killed"
        assert_delivered(stored(launch.database_url, zone.id), known, unheard)

        server = await servers.start(launch)
        zone = FreshZone(server, zone.id)
        known |= await repeated(zone, load, sorted(unheard))
        again = sorted(load.acknowledged)[:MEMBERS]
        assert await repeated(zone, load, again, {200}) == {key: known[key] for key in again}
        assert_delivered(stored(launch.database_url, zone.id), known)
    await assert_polled_once(zone, known)


async def crewed(zone: FreshZone) -> None:
    async with zone.client(zone.token(role=Role.OWNER)) as client:
        asked: list[tuple[str, dict[str, str]]] = [("/api/v1/fleets", {})]
        asked += [(f"{ONE}/members", {"name": f"m{n}", "description": ""}) for n in RECIPIENTS]
        for path, body in asked:
            answer = await client.post(path, json=body)
            assert answer.status_code == 201, answer.text


async def repeated(
    zone: FreshZone, load: Messages, keys: list[str], statuses: Collection[int] = (200, 201)
) -> dict[str, str]:
    """What those are told who ask again: it was sent then, or is sent now."""
    answers = await send_all(zone.server.url, [load.build_request(key) for key in keys])
    assert {answer.status for answer in answers} <= set(statuses)
    return {key: load.created_id(answer) for key, answer in zip(keys, answers, strict=True)}


def stored(url: str, zone_id: str) -> dict[str, list[Stored]]:
    """By key, everything that was sent with it; a broadcast by its summary."""
    rows = DirectDatabase(url).execute(
        "select coalesce(origin_task_id, task_id), to_agent_id, text, type from messages where zone_id = ? "
        "order by to_agent_id",
        zone_id,
    )
    summaries = {str(id) for id, _, _, kind in rows if kind == "broadcast_summary"}
    parts: dict[tuple[str, str], list[int]] = defaultdict(list)
    for id, to, text, kind in rows:
        if kind == "unicast":
            parts[str(text), str(id)].append(int(str(to)))
    found: dict[str, list[Stored]] = defaultdict(list)
    for (key, id), recipients in parts.items():
        assert to_whom(key) != "*" or id in summaries, "a delivery without its broadcast"
        found[key].append(Stored(id, recipients))
    assert summaries == {each.id for key in found if to_whom(key) == "*" for each in found[key]}
    return found


def assert_delivered(found: dict[str, list[Stored]], known: dict[str, str], unheard: Iterable[str] = ()) -> None:
    """Everything that is known once, to each of its recipients; of what nobody heard of, the same or nothing; and
    nothing else."""
    assert found.keys() - known.keys() <= {*unheard}
    for key, sent in found.items():
        [one] = sent
        assert one.is_whole(key), f"{key} reached {one.recipients}"
        assert one.id == known.get(key, one.id)
    assert not known.keys() - found.keys(), "what was answered is not there"


async def assert_polled_once(zone: FreshZone, known: dict[str, str]) -> None:
    """Whoever polls finds each of those that are for it, once."""
    expected = sorted(key for key in known if to_whom(key) in ("*", RECIPIENTS[0]))
    texts: list[str] = []
    async with zone.client() as client:
        after = 0
        while True:
            query: dict[str, str | int] = {"status": "input_required", "order": "asc", "limit": 500, "after": after}
            answer = await client.get(f"{ONE}/members/{RECIPIENTS[0]}/inbox", params=query)
            assert answer.status_code == 200, answer.text
            page = answer.json()["messages"]
            if not page:
                break
            texts += [message["text"] for message in page]
            after = page[-1]["task_id"]
    assert sorted(texts) == expected
