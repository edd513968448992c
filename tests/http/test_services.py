"""Services over HTTP: both spellings of every route, what is shown once, what is refused and by which name."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from quarterdeck.wiring.sessions import push_secrets
from tests.support.replicas import start_replica
from tests.support.runtime import DirectDatabase
from tests.support.server import Launch, Servers
from tests.support.zone import APP, FreshZone, assert_problem, create_zone, end, json_object, read_events, spawn

URL = "https://agents.example.com/research"
FIELDS = [
    "id", "zone_id", "application_id", "agent_id", "endpoint_url", "protocol_versions", "framework_name",
    "framework_version", "capabilities", "health", "metadata_json", "delivery", "active_invocations",
    "last_heartbeat_at", "created_at", "updated_at",
]  # fmt: skip


def services(zone: FreshZone, rest: str = "") -> str:
    return f"{zone.path}/agent-services{rest}"


async def register(client: httpx.AsyncClient, path: str, **asked: object) -> dict[str, Any]:
    answer = await client.post(path, json={"endpoint_url": URL, **asked})
    assert answer.status_code == 201, answer.text
    return json_object(answer)


async def paths_to(client: httpx.AsyncClient, zone: FreshZone) -> tuple[str, list[str]]:
    """A session with a service, and the two paths to that."""
    session = (await spawn(client, zone))["id"]
    made = await register(client, zone.session_path(session, "/services"))
    return session, [zone.session_path(session, f"/services/{made['id']}"), services(zone, f"/{made['id']}")]


# -- registering -------------------------------------------------------------------------------------------------


async def test_a_service_is_made_with_201_and_known_with_200_by_either_path(zone: FreshZone) -> None:
    asked = {
        "protocol_versions": ["1.0", "2"],
        "framework_name": "fw",
        "framework_version": "3",
        "capabilities": ["a"],
        "health": "healthy",
        "metadata_json": {"deep": {"er": [1, None, "ü"]}},
        "nonsense": 1,
    }
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        made = await register(client, zone.session_path(session, "/services"), **asked)
        assert list(made) == FIELDS
        assert {name: made[name] for name in asked if name in made} == {
            name: value for name, value in asked.items() if name != "nonsense"
        }
        assert (made["zone_id"], made["application_id"], made["agent_id"]) == (zone.id, APP, session)
        assert (made["delivery"], made["active_invocations"], made["last_heartbeat_at"]) == ("pull", 0, None)
        assert made["created_at"].endswith("Z")
        again = await client.post(services(zone), json={"endpoint_url": URL, "application_id": APP})
        assert (again.status_code, json_object(again)["id"]) == (200, made["id"])
        assert json_object(again)["metadata_json"] == asked["metadata_json"]
        paths = [zone.session_path(session, f"/services/{made['id']}"), services(zone, f"/{made['id']}")]
        answers = [await client.get(path) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert json_object(answers[0]) == json_object(answers[1]) == json_object(again)
    types = [event["type"] for event in await read_events(zone, subject=made["id"])]
    assert types == ["service.register", "service.change"]


async def test_a_service_of_a_named_session_goes_with_it_and_comes_back_with_201(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        made = await register(client, services(zone), application_id=APP, agent_id=session)
        assert made["agent_id"] == session
        await end(client, zone, session)
        assert_problem(await client.get(services(zone, f"/{made['id']}")), 404, "agent_service_not_found")
        assert json_object(await client.get(zone.session_path(session, "/services")))["items"] == []
        again = await register(client, services(zone), application_id=APP)
    assert (again["id"], again["agent_id"]) == (made["id"], None)


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"endpoint_url": None}, "endpoint_url"),
        ({"endpoint_url": "x" * 2_049}, "endpoint_url"),
        ({"application_id": "a b"}, "application_id"),
        ({"health": "well"}, "health"),
        ({"health": None}, "health"),
        ({"delivery": "mail"}, "delivery"),
        ({"capabilities": "a"}, "capabilities"),
        ({"capabilities": ["a"] * 257}, "capabilities"),
        ({"capabilities": ["a" * 257]}, "capabilities[0]"),
        ({"capabilities": [""]}, "capabilities[0]"),
        ({"protocol_versions": ["1"] * 65}, "protocol_versions"),
        ({"framework_name": ""}, "framework_name"),
        ({"framework_version": "v" * 257}, "framework_version"),
        ({"metadata_json": []}, "metadata_json"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {"a": 1}, "metadata_json": {}}, "metadata"),
    ],
)
async def test_a_body_that_is_wrong_is_400_with_its_field(zone: FreshZone, asked: Any, field: str) -> None:
    async with zone.client() as client:
        session, [own, plain] = await paths_to(client, zone)
        posts = [zone.session_path(session, "/services"), services(zone)]
        for path in posts:
            body = {"endpoint_url": URL, "application_id": APP, **asked}
            assert assert_problem(await client.post(path, json=body), 400, "invalid_body")["field"] == field
        if field not in ("endpoint_url", "application_id"):
            for path in (own, plain):
                answer = await client.patch(path, json=asked)
                assert assert_problem(answer, 400, "invalid_body")["field"] == field
        assert len(json_object(await client.get(services(zone)))["items"]) == 1


async def test_what_must_be_said_is_named_when_it_is_not(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        assert_problem(await client.post(zone.session_path(session, "/services"), json={}), 400, "invalid_body")
        assert_problem(await client.post(services(zone), json={"endpoint_url": URL}), 400, "invalid_body")
        assert_problem(await client.post(services(zone), json={"application_id": APP}), 400, "invalid_body")


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "http://user:secret@a/", "http://a/#x", "//a/", "http://a b/", "http://a:99999/", ""]
)
async def test_an_endpoint_that_is_none_is_400_by_its_name(zone: FreshZone, url: str) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        for path in (zone.session_path(session, "/services"), services(zone)):
            answer = await client.post(path, json={"endpoint_url": url, "application_id": APP})
            assert assert_problem(answer, 400, "invalid_endpoint_url")["field"] == "endpoint_url"
            assert "secret" not in answer.text


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8080/", "http://localhost/", "http://10.0.0.1/", "http://169.254.169.254/latest/",
     "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::10.0.0.1]/", "http://2130706433/", "http://0/"],
)  # fmt: skip
async def test_an_address_inside_is_not_pushed_to_but_may_be_pulled_for(zone: FreshZone, url: str) -> None:
    async with zone.client() as client:
        asked = {"endpoint_url": url, "application_id": APP}
        pushed = await client.post(services(zone), json={**asked, "delivery": "push"})
        assert assert_problem(pushed, 400, "invalid_endpoint_url")["field"] == "endpoint_url"
        made = await register(client, services(zone), **asked)
        changed = await client.patch(services(zone, f"/{made['id']}"), json={"delivery": "push"})
        assert_problem(changed, 400, "invalid_endpoint_url")


async def test_refusals_of_a_registration_name_what_is_in_the_way(zone: FreshZone) -> None:
    other = zone.token(client_id="other")
    async with zone.client() as client, zone.client(other) as stranger:
        session = (await spawn(client, zone))["id"]
        path = zone.session_path(session, "/services")
        asked = {"endpoint_url": URL}
        named = {**asked, "application_id": APP}
        assert_problem(await stranger.post(path, json=asked), 403, "application_ownership_required")
        assert_problem(await stranger.post(services(zone), json=named), 403, "application_ownership_required")
        wrong = await client.post(path, json={**asked, "application_id": "other"})
        assert assert_problem(wrong, 400, "application_mismatch")["field"] == "application_id"
        assert_problem(await client.post(zone.session_path("none", "/services"), json=asked), 404, "agent_not_found")
        none = await client.post(services(zone), json={**named, "agent_id": "none"})
        assert_problem(none, 404, "agent_not_found")
        assert (await client.post(zone.session_path(session, "/suspend"))).status_code == 200
        assert_problem(await client.post(path, json=asked), 409, "agent_suspended")
        await client.post(zone.session_path(session, "/resume"))
        await end(client, zone, session)
        assert_problem(await client.post(path, json=asked), 404, "agent_not_found")
        assert json_object(await client.get(services(zone)))["items"] == []


async def test_whoever_may_spawn_for_an_application_may_register_for_it(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        made = await register(client, services(zone), application_id="other")
        assert made["application_id"] == "other"
        path = services(zone, f"/{made['id']}")
        assert (await client.patch(path, json={"health": "healthy"})).status_code == 200
        assert (await client.delete(path)).status_code == 204


# -- the secret --------------------------------------------------------------------------------------------------


def secret_of(answer: httpx.Response) -> str | None:
    secret = json_object(answer).get("secret")
    assert (answer.headers.get("cache-control") == "no-store") is (secret is not None)
    if secret is not None:
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    return secret if secret is None else str(secret)


async def test_the_secret_is_shown_when_push_begins_and_when_it_is_rotated_and_never_else(zone: FreshZone) -> None:
    asked = {"endpoint_url": URL, "application_id": APP, "delivery": "push"}
    async with zone.client() as client:
        first = await client.post(services(zone), json=asked)
        secret = secret_of(first)
        assert (first.status_code, secret is not None) == (201, True)
        path = services(zone, f"/{json_object(first)['id']}")
        for quiet in (
            await client.post(services(zone), json=asked),
            await client.get(path),
            await client.patch(path, json={"health": "healthy"}),
            await client.patch(path, json={"delivery": "push"}),
            await client.patch(path, json={"delivery": "pull"}),
            await client.post(f"{path}/heartbeat"),
        ):
            assert quiet.status_code == 200
            assert secret_of(quiet) is None
        begun = secret_of(await client.patch(path, json={"delivery": "push"}))
        rotated = secret_of(await client.patch(path, json={"rotate_secret": True}))
        assert (await client.delete(path)).status_code == 204
        back = await client.post(services(zone), json=asked)
        assert back.status_code == 201
        assert len({secret, begun, rotated, secret_of(back)} - {None}) == 4, "none is shown twice"
        listed = await client.get(services(zone))
    told = str(await read_events(zone))
    assert "whsec_" not in listed.text + told


async def test_replicas_that_share_a_signing_key_agree_on_every_secret(servers: Servers, postgres_url: str) -> None:
    first = await servers.start(Launch(servers.directory / "one", postgres_url))
    zone = await create_zone(first)
    second = FreshZone(await start_replica(first, servers), zone.id)
    asked = {"endpoint_url": URL, "application_id": APP, "delivery": "push"}
    async with zone.client() as one, second.client(zone.token()) as two:
        made = await one.post(services(zone), json=asked)
        path = services(zone, f"/{json_object(made)['id']}")
        rotated = await two.patch(path, json={"rotate_secret": True})
    for each in (first, second.server):
        secrets = push_secrets(each.issuer)
        found = [secrets(zone.id, json_object(made)["id"], number) for number in (1, 2)]
        assert found == [secret_of(made), secret_of(rotated)]


async def test_no_secret_is_in_the_database_or_the_log(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="debug", QD_PUSH_PRIVATE_ADDRESSES="true"))
    zone = await create_zone(server)
    asked = {"endpoint_url": "http://127.0.0.1:1/", "application_id": APP, "delivery": "push"}
    async with zone.client() as client:
        made = await client.post(services(zone), json=asked)
        assert made.status_code == 201, "allowed by a setting"
        secret = secret_of(made)
    assert secret
    await server.stop()
    side = DirectDatabase(launch.database_url)
    stored = [str(side.execute(f"select * from {table}")) for table in ("agent_services", "events")]
    assert all(json_object(made)["id"] in rows for rows in stored)
    for text in (*stored, server.log_text):
        assert secret.removeprefix("whsec_")[:16] not in text


# -- changing ----------------------------------------------------------------------------------------------------


async def test_a_patch_changes_what_it_says_by_either_path(zone: FreshZone) -> None:
    changes: list[dict[str, Any]] = [
        {"health": "degraded"},
        {"metadata_json": {"a": 1}},
        {"metadata": {"b": 2}},
        {"capabilities": ["x"], "protocol_versions": ["9"]},
        {"framework_name": "f", "framework_version": "2"},
        {"framework_name": None},
        {"capabilities": [], "metadata": {}},
    ]
    async with zone.client() as client:
        for path in (await paths_to(client, zone))[1]:
            before = json_object(await client.get(path))
            for change in changes:
                answer = await client.patch(path, json=change)
                assert answer.status_code == 200, answer.text
                said = {"metadata_json" if name == "metadata" else name: v for name, v in change.items()}
                assert json_object(answer) == {**before, **said, "updated_at": json_object(answer)["updated_at"]}
                before = json_object(answer)
            assert json_object(await client.patch(path, json={})) == before
            assert json_object(await client.get(path)) == before


async def test_only_its_application_changes_beats_and_unregisters_a_service(zone: FreshZone) -> None:
    async with zone.client() as owner, zone.client(zone.token(client_id="other")) as stranger:
        session, paths = await paths_to(owner, zone)
        for path in paths:
            assert (await stranger.get(path)).status_code == 200
            for answer in (
                await stranger.patch(path, json={"health": "healthy"}),
                await stranger.post(f"{path}/heartbeat"),
                await stranger.delete(path),
            ):
                assert_problem(answer, 403, "application_ownership_required")
        refused = await stranger.post(zone.session_path(session, "/heartbeat"))
        assert_problem(refused, 403, "application_ownership_required")
        assert json_object(await owner.get(paths[0]))["health"] == "starting"


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_an_empty_heartbeat_is_fine_and_writes_no_event(zone: FreshZone) -> None:
    async with zone.client() as client:
        session, paths = await paths_to(client, zone)
        before = await read_events(zone)
        for path in paths:
            for body in (b"", b"{}"):
                answer = await client.post(f"{path}/heartbeat", content=body)
                assert answer.status_code == 200, answer.text
                assert json_object(answer)["last_heartbeat_at"] is not None
                assert json_object(await client.get(path)) == json_object(answer)
        alias = await client.post(zone.session_path(session, "/heartbeat"))
        assert (alias.status_code, json_object(alias)["services"]) == (200, 1)
    assert await read_events(zone) == before


async def test_a_heartbeat_may_tell_of_health_work_and_metadata(zone: FreshZone) -> None:
    async with zone.client() as client:
        session, [path, _] = await paths_to(client, zone)
        told = {"status": "healthy", "active_invocations": 7, "metadata": {"load": 0.5}}
        answer = await client.post(f"{path}/heartbeat", json=told)
        said = json_object(answer)
        assert (said["health"], said["active_invocations"], said["metadata_json"]) == ("healthy", 7, {"load": 0.5})
        second = await register(client, zone.session_path(session, "/services"), endpoint_url=URL + "/2")
        alias = zone.session_path(session, "/heartbeat")
        one = await client.post(alias, json={"service_id": second["id"], "status": "degraded"})
        both = await client.post(alias, json={"status": "unhealthy"})
        assert (json_object(one)["services"], json_object(both)["services"]) == (1, 2)
        items = json_object(await client.get(zone.session_path(session, "/services")))["items"]
        assert [item["health"] for item in items] == ["unhealthy", "unhealthy"]
        assert {item["last_heartbeat_at"] for item in items} == {json_object(both)["last_heartbeat_at"]}
    changes = [(event["from"], event["to"]) for event in await read_events(zone) if event["type"] == "service.change"]
    assert changes[:2] == [("starting", "healthy"), ("starting", "degraded")]
    assert sorted(changes[2:]) == [("degraded", "unhealthy"), ("healthy", "unhealthy")]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"status": "alive"}, "status"),
        ({"active_invocations": -1}, "active_invocations"),
        ({"active_invocations": 1_000_000_001}, "active_invocations"),
        ({"active_invocations": "3"}, "active_invocations"),
        ({"metadata": []}, "metadata"),
        ({"status": "healthy", "health": "degraded"}, "status"),
    ],
)
async def test_a_heartbeat_that_is_wrong_is_400_with_its_field(zone: FreshZone, body: Any, field: str) -> None:
    async with zone.client() as client:
        session, paths = await paths_to(client, zone)
        for path in (*paths, zone.session_path(session)):
            answer = await client.post(f"{path}/heartbeat", json=body)
            assert assert_problem(answer, 400, "invalid_body")["field"] == field
        refused = await client.post(zone.session_path(session, "/heartbeat"), json={"service_id": "a b"})
        assert assert_problem(refused, 400, "invalid_body")["field"] == "service_id"


async def test_many_heartbeats_at_once_are_each_answered(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        path = zone.session_path(session, "/services")
        made = [await register(client, path, endpoint_url=f"{URL}/{n}") for n in range(5)]
        asks = [(one["id"], n) for one in made for n in range(10)]
        answers = await asyncio.gather(
            *(client.post(f"{path}/{name}/heartbeat", json={"active_invocations": n}) for name, n in asks)
        )
    assert [(json_object(a)["id"], json_object(a)["active_invocations"]) for a in answers] == asks


# -- unregistering and lists -------------------------------------------------------------------------------------


async def test_unregistering_is_204_and_204_again_by_either_path(zone: FreshZone) -> None:
    async with zone.client() as client:
        for which in (0, 1):
            _, paths = await paths_to(client, zone)
            for path in (paths[which], paths[which], *paths):
                answer = await client.delete(path)
                assert (answer.status_code, answer.content) == (204, b"")
            for path in paths:
                assert_problem(await client.get(path), 404, "agent_service_not_found")
                assert_problem(await client.post(f"{path}/heartbeat"), 404, "agent_service_not_found")
                assert_problem(await client.patch(path, json={}), 404, "agent_service_not_found")
        missing = await client.delete(services(zone, "/nothing"))
        assert_problem(missing, 404, "agent_service_not_found")
    types = [event["type"] for event in await read_events(zone) if event["type"].startswith("service")]
    assert types == ["service.register", "service.unregister"] * 2


async def test_a_service_that_two_sessions_registered_stays_while_one_lives(zone: FreshZone) -> None:
    async with zone.client() as client:
        first, [_, path] = await paths_to(client, zone)
        second = (await spawn(client, zone))["id"]
        assert (
            await client.post(zone.session_path(second, "/services"), json={"endpoint_url": URL})
        ).status_code == 200
        assert json_object(await client.get(path))["agent_id"] == first
        await end(client, zone, first)
        assert json_object(await client.get(path))["agent_id"] == second
        items = json_object(await client.get(zone.session_path(second, "/services")))["items"]
        assert [item["id"] for item in items] == [path.rpartition("/")[2]]
        await end(client, zone, second)
        assert_problem(await client.get(path), 404, "agent_service_not_found")


async def test_services_are_listed_newest_first_in_pages_with_filters(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.admin")) as client:
        session = (await spawn(client, zone))["id"]
        own = zone.session_path(session, "/services")
        made = [(await register(client, own, endpoint_url=f"{URL}/{n}"))["id"] for n in range(3)]
        made += [(await register(client, services(zone), application_id="other", health="healthy"))["id"]]
        for path, expected in ((own, made[2::-1]), (services(zone), made[::-1])):
            first = await client.get(path, params={"limit": 2})
            assert [item["id"] for item in json_object(first)["items"]] == expected[:2]
            assert f"cursor={json_object(first)['next_cursor']}" in first.headers["link"]
            rest = await client.get(path, params={"cursor": json_object(first)["next_cursor"]})
            assert [item["id"] for item in json_object(rest)["items"]] == expected[2:]
            assert json_object(rest)["next_cursor"] is None
            for query in ("limit=0", "limit=501", "cursor=x", "cursor=YWdlbnRzCmE"):
                assert_problem(await client.get(f"{path}?{query}"), 400)
        for wanted, found in (
            ({"application_id": "other"}, made[3:]),
            ({"health": "starting"}, made[2::-1]),
            ({"health": "healthy", "application_id": APP}, []),
        ):
            answer = await client.get(services(zone), params=wanted)
            assert [item["id"] for item in json_object(answer)["items"]] == found
        assert_problem(await client.get(services(zone), params={"health": "x"}), 400, "invalid_query")
        assert_problem(await client.get(zone.session_path("none", "/services")), 404, "agent_not_found")
