"""Services over HTTP: both paths to every service, when the secret is returned, and each refusal with its code."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import httpx
import pytest

from quarterdeck.core.webhook_signing import secret_deriver
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


def services_path(zone: FreshZone, rest: str = "") -> str:
    return f"{zone.path}/agent-services{rest}"


async def register(client: httpx.AsyncClient, path: str, **fields: object) -> dict[str, Any]:
    response = await client.post(path, json={"endpoint_url": URL, **fields})
    assert response.status_code == 201, response.text
    return json_object(response)


async def new_service(client: httpx.AsyncClient, zone: FreshZone) -> tuple[str, list[str]]:
    """A new session with one service: the session's id, and both paths to the service."""
    session = (await spawn(client, zone))["id"]
    created = await register(client, zone.session_path(session, "/services"))
    return session, [zone.session_path(session, f"/services/{created['id']}"), services_path(zone, f"/{created['id']}")]


# -- registering -------------------------------------------------------------------------------------------------


async def test_new_service_is_201_and_repeated_registration_is_200_on_either_path(zone: FreshZone) -> None:
    fields = {
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
        created = await register(client, zone.session_path(session, "/services"), **fields)
        assert list(created) == FIELDS
        assert {name: created[name] for name in fields if name in created} == {
            name: value for name, value in fields.items() if name != "nonsense"
        }
        assert (created["zone_id"], created["application_id"], created["agent_id"]) == (zone.id, APP, session)
        assert (created["delivery"], created["active_invocations"], created["last_heartbeat_at"]) == ("pull", 0, None)
        assert created["created_at"].endswith("Z")
        repeated = await client.post(services_path(zone), json={"endpoint_url": URL, "application_id": APP})
        assert (repeated.status_code, json_object(repeated)["id"]) == (200, created["id"])
        assert json_object(repeated)["metadata_json"] == fields["metadata_json"]
        paths = [zone.session_path(session, f"/services/{created['id']}"), services_path(zone, f"/{created['id']}")]
        responses = [await client.get(path) for path in paths]
    assert [response.status_code for response in responses] == [200, 200]
    assert json_object(responses[0]) == json_object(responses[1]) == json_object(repeated)
    types = [event["type"] for event in await read_events(zone, subject=created["id"])]
    assert types == ["service.register", "service.change"]


async def test_service_ends_with_its_session_and_can_be_registered_again(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        created = await register(client, services_path(zone), application_id=APP, agent_id=session)
        assert created["agent_id"] == session
        await end(client, zone, session)
        assert_problem(await client.get(services_path(zone, f"/{created['id']}")), 404, "agent_service_not_found")
        assert json_object(await client.get(zone.session_path(session, "/services")))["items"] == []
        renewed = await register(client, services_path(zone), application_id=APP)
    assert (renewed["id"], renewed["agent_id"]) == (created["id"], None)


@pytest.mark.parametrize(
    ("fields", "field"),
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
async def test_invalid_body_is_400_with_the_field(zone: FreshZone, fields: Any, field: str) -> None:
    async with zone.client() as client:
        session, [by_session, by_zone] = await new_service(client, zone)
        create_paths = [zone.session_path(session, "/services"), services_path(zone)]
        for path in create_paths:
            body = {"endpoint_url": URL, "application_id": APP, **fields}
            assert assert_problem(await client.post(path, json=body), 400, "invalid_body")["field"] == field
        if field not in ("endpoint_url", "application_id"):
            for path in (by_session, by_zone):
                response = await client.patch(path, json=fields)
                assert assert_problem(response, 400, "invalid_body")["field"] == field
        assert len(json_object(await client.get(services_path(zone)))["items"]) == 1


async def test_missing_required_field_is_400(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        assert_problem(await client.post(zone.session_path(session, "/services"), json={}), 400, "invalid_body")
        assert_problem(await client.post(services_path(zone), json={"endpoint_url": URL}), 400, "invalid_body")
        assert_problem(await client.post(services_path(zone), json={"application_id": APP}), 400, "invalid_body")


@pytest.mark.parametrize(
    "url", ["ftp://a/b", "http://user:secret@a/", "http://a/#x", "//a/", "http://a b/", "http://a:99999/", ""]
)
async def test_invalid_endpoint_url_is_400_and_its_secret_is_not_echoed(zone: FreshZone, url: str) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        for path in (zone.session_path(session, "/services"), services_path(zone)):
            response = await client.post(path, json={"endpoint_url": url, "application_id": APP})
            assert assert_problem(response, 400, "invalid_endpoint_url")["field"] == "endpoint_url"
            assert "secret" not in response.text


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:8080/", "http://localhost/", "http://10.0.0.1/", "http://169.254.169.254/latest/",
     "http://[::1]/", "http://[::ffff:10.0.0.1]/", "http://[64:ff9b::10.0.0.1]/", "http://2130706433/", "http://0/"],
)  # fmt: skip
async def test_private_address_is_refused_for_push_and_allowed_for_pull(zone: FreshZone, url: str) -> None:
    async with zone.client() as client:
        body = {"endpoint_url": url, "application_id": APP}
        pushed = await client.post(services_path(zone), json={**body, "delivery": "push"})
        assert assert_problem(pushed, 400, "invalid_endpoint_url")["field"] == "endpoint_url"
        created = await register(client, services_path(zone), **body)
        changed = await client.patch(services_path(zone, f"/{created['id']}"), json={"delivery": "push"})
        assert_problem(changed, 400, "invalid_endpoint_url")


async def test_refused_registration_names_the_reason(zone: FreshZone) -> None:
    other_token = zone.token(client_id="other")
    async with zone.client() as client, zone.client(other_token) as other_client:
        session = (await spawn(client, zone))["id"]
        path = zone.session_path(session, "/services")
        body = {"endpoint_url": URL}
        with_application = {**body, "application_id": APP}
        assert_problem(await other_client.post(path, json=body), 403, "application_ownership_required")
        assert_problem(
            await other_client.post(services_path(zone), json=with_application), 403, "application_ownership_required"
        )
        mismatched = await client.post(path, json={**body, "application_id": "other"})
        assert assert_problem(mismatched, 400, "application_mismatch")["field"] == "application_id"
        assert_problem(await client.post(zone.session_path("none", "/services"), json=body), 404, "agent_not_found")
        unknown = await client.post(services_path(zone), json={**with_application, "agent_id": "none"})
        assert_problem(unknown, 404, "agent_not_found")
        assert (await client.post(zone.session_path(session, "/suspend"))).status_code == 200
        assert_problem(await client.post(path, json=body), 409, "agent_suspended")
        await client.post(zone.session_path(session, "/resume"))
        await end(client, zone, session)
        assert_problem(await client.post(path, json=body), 404, "agent_not_found")
        assert json_object(await client.get(services_path(zone)))["items"] == []


async def test_spawn_for_scope_allows_registering_for_that_application(zone: FreshZone) -> None:
    async with zone.client(zone.token("agent:lifecycle", "coordinator.spawn_for:other")) as client:
        created = await register(client, services_path(zone), application_id="other")
        assert created["application_id"] == "other"
        path = services_path(zone, f"/{created['id']}")
        assert (await client.patch(path, json={"health": "healthy"})).status_code == 200
        assert (await client.delete(path)).status_code == 204


# -- the secret --------------------------------------------------------------------------------------------------


def secret_of(response: httpx.Response) -> str | None:
    secret = json_object(response).get("secret")
    assert (response.headers.get("cache-control") == "no-store") is (secret is not None)
    if secret is not None:
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"), validate=True)) == 32
    return secret if secret is None else str(secret)


async def test_secret_is_returned_only_when_push_starts_and_on_rotation(zone: FreshZone) -> None:
    body = {"endpoint_url": URL, "application_id": APP, "delivery": "push"}
    async with zone.client() as client:
        first = await client.post(services_path(zone), json=body)
        secret = secret_of(first)
        assert (first.status_code, secret is not None) == (201, True)
        path = services_path(zone, f"/{json_object(first)['id']}")
        for without_secret in (
            await client.post(services_path(zone), json=body),
            await client.get(path),
            await client.patch(path, json={"health": "healthy"}),
            await client.patch(path, json={"delivery": "push"}),
            await client.patch(path, json={"delivery": "pull"}),
            await client.post(f"{path}/heartbeat"),
        ):
            assert without_secret.status_code == 200
            assert secret_of(without_secret) is None
        restarted = secret_of(await client.patch(path, json={"delivery": "push"}))
        rotated = secret_of(await client.patch(path, json={"rotate_secret": True}))
        assert (await client.delete(path)).status_code == 204
        renewed = await client.post(services_path(zone), json=body)
        assert renewed.status_code == 201
        assert len({secret, restarted, rotated, secret_of(renewed)} - {None}) == 4, "every secret is new"
        listed = await client.get(services_path(zone))
    events = str(await read_events(zone))
    assert "whsec_" not in listed.text + events


async def test_replicas_that_share_a_signing_key_derive_the_same_secrets(servers: Servers, postgres_url: str) -> None:
    first = await servers.start(Launch(servers.directory / "one", postgres_url))
    zone = await create_zone(first)
    second = FreshZone(await start_replica(first, servers), zone.id)
    body = {"endpoint_url": URL, "application_id": APP, "delivery": "push"}
    async with zone.client() as first_client, second.client(zone.token()) as second_client:
        created = await first_client.post(services_path(zone), json=body)
        path = services_path(zone, f"/{json_object(created)['id']}")
        rotated = await second_client.patch(path, json={"rotate_secret": True})
    for server in (first, second.server):
        secrets = secret_deriver(server.issuer.derive_secret("push secrets"))
        derived = [secrets(zone.id, json_object(created)["id"], number) for number in (1, 2)]
        assert derived == [secret_of(created), secret_of(rotated)]


async def test_secret_is_neither_in_the_database_nor_in_the_log(servers: Servers, launch: Launch) -> None:
    server = await servers.start(launch.with_environment(QD_LOG_LEVEL="debug", QD_PUSH_PRIVATE_ADDRESSES="true"))
    zone = await create_zone(server)
    body = {"endpoint_url": "http://127.0.0.1:1/", "application_id": APP, "delivery": "push"}
    async with zone.client() as client:
        created = await client.post(services_path(zone), json=body)
        assert created.status_code == 201, "QD_PUSH_PRIVATE_ADDRESSES allows it"
        secret = secret_of(created)
    assert secret
    await server.stop()
    database = DirectDatabase(launch.database_url)
    stored = [str(database.execute(f"select * from {table}")) for table in ("agent_services", "events")]
    assert all(json_object(created)["id"] in rows for rows in stored)
    for text in (*stored, server.log_text):
        assert secret.removeprefix("whsec_")[:16] not in text


# -- changing ----------------------------------------------------------------------------------------------------


async def test_patch_changes_only_the_named_fields_on_either_path(zone: FreshZone) -> None:
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
        for path in (await new_service(client, zone))[1]:
            before = json_object(await client.get(path))
            for change in changes:
                response = await client.patch(path, json=change)
                assert response.status_code == 200, response.text
                changed = {"metadata_json" if name == "metadata" else name: v for name, v in change.items()}
                assert json_object(response) == {**before, **changed, "updated_at": json_object(response)["updated_at"]}
                before = json_object(response)
            assert json_object(await client.patch(path, json={})) == before
            assert json_object(await client.get(path)) == before


async def test_only_the_owner_can_change_heartbeat_or_unregister_a_service(zone: FreshZone) -> None:
    async with zone.client() as owner, zone.client(zone.token(client_id="other")) as other_client:
        session, paths = await new_service(owner, zone)
        for path in paths:
            assert (await other_client.get(path)).status_code == 200
            for response in (
                await other_client.patch(path, json={"health": "healthy"}),
                await other_client.post(f"{path}/heartbeat"),
                await other_client.delete(path),
            ):
                assert_problem(response, 403, "application_ownership_required")
        refused = await other_client.post(zone.session_path(session, "/heartbeat"))
        assert_problem(refused, 403, "application_ownership_required")
        assert json_object(await owner.get(paths[0]))["health"] == "starting"


# -- heartbeats --------------------------------------------------------------------------------------------------


async def test_empty_heartbeat_is_accepted_and_writes_no_event(zone: FreshZone) -> None:
    async with zone.client() as client:
        session, paths = await new_service(client, zone)
        before = await read_events(zone)
        for path in paths:
            for body in (b"", b"{}"):
                response = await client.post(f"{path}/heartbeat", content=body)
                assert response.status_code == 200, response.text
                assert json_object(response)["last_heartbeat_at"] is not None
                assert json_object(await client.get(path)) == json_object(response)
        alias = await client.post(zone.session_path(session, "/heartbeat"))
        assert (alias.status_code, json_object(alias)["services"]) == (200, 1)
    assert await read_events(zone) == before


async def test_heartbeat_updates_health_active_invocations_and_metadata(zone: FreshZone) -> None:
    async with zone.client() as client:
        session, [path, _] = await new_service(client, zone)
        body = {"status": "healthy", "active_invocations": 7, "metadata": {"load": 0.5}}
        response = await client.post(f"{path}/heartbeat", json=body)
        service = json_object(response)
        assert (service["health"], service["active_invocations"], service["metadata_json"]) == (
            "healthy",
            7,
            {"load": 0.5},
        )
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
async def test_invalid_heartbeat_is_400_with_the_field(zone: FreshZone, body: Any, field: str) -> None:
    async with zone.client() as client:
        session, paths = await new_service(client, zone)
        for path in (*paths, zone.session_path(session)):
            response = await client.post(f"{path}/heartbeat", json=body)
            assert assert_problem(response, 400, "invalid_body")["field"] == field
        refused = await client.post(zone.session_path(session, "/heartbeat"), json={"service_id": "a b"})
        assert assert_problem(refused, 400, "invalid_body")["field"] == "service_id"


async def test_concurrent_heartbeats_each_get_their_own_response(zone: FreshZone) -> None:
    async with zone.client() as client:
        session = (await spawn(client, zone))["id"]
        path = zone.session_path(session, "/services")
        created = [await register(client, path, endpoint_url=f"{URL}/{n}") for n in range(5)]
        heartbeats = [(service["id"], n) for service in created for n in range(10)]
        responses = await asyncio.gather(
            *(client.post(f"{path}/{name}/heartbeat", json={"active_invocations": n}) for name, n in heartbeats)
        )
    assert [(json_object(a)["id"], json_object(a)["active_invocations"]) for a in responses] == heartbeats


# -- unregistering and lists -------------------------------------------------------------------------------------


async def test_unregistering_is_idempotent_on_either_path(zone: FreshZone) -> None:
    async with zone.client() as client:
        for index in (0, 1):
            _, paths = await new_service(client, zone)
            for path in (paths[index], paths[index], *paths):
                response = await client.delete(path)
                assert (response.status_code, response.content) == (204, b"")
            for path in paths:
                assert_problem(await client.get(path), 404, "agent_service_not_found")
                assert_problem(await client.post(f"{path}/heartbeat"), 404, "agent_service_not_found")
                assert_problem(await client.patch(path, json={}), 404, "agent_service_not_found")
        missing = await client.delete(services_path(zone, "/nothing"))
        assert_problem(missing, 404, "agent_service_not_found")
    types = [event["type"] for event in await read_events(zone) if event["type"].startswith("service")]
    assert types == ["service.register", "service.unregister"] * 2


async def test_service_registered_by_two_sessions_lasts_until_both_end(zone: FreshZone) -> None:
    async with zone.client() as client:
        first, [_, path] = await new_service(client, zone)
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
        session_services = zone.session_path(session, "/services")
        created = [(await register(client, session_services, endpoint_url=f"{URL}/{n}"))["id"] for n in range(3)]
        created += [(await register(client, services_path(zone), application_id="other", health="healthy"))["id"]]
        for path, expected in ((session_services, created[2::-1]), (services_path(zone), created[::-1])):
            first = await client.get(path, params={"limit": 2})
            assert [item["id"] for item in json_object(first)["items"]] == expected[:2]
            assert f"cursor={json_object(first)['next_cursor']}" in first.headers["link"]
            rest = await client.get(path, params={"cursor": json_object(first)["next_cursor"]})
            assert [item["id"] for item in json_object(rest)["items"]] == expected[2:]
            assert json_object(rest)["next_cursor"] is None
            for query in ("limit=0", "limit=501", "cursor=x", "cursor=YWdlbnRzCmE"):
                assert_problem(await client.get(f"{path}?{query}"), 400)
        for filters, found in (
            ({"application_id": "other"}, created[3:]),
            ({"health": "starting"}, created[2::-1]),
            ({"health": "healthy", "application_id": APP}, []),
        ):
            response = await client.get(services_path(zone), params=filters)
            assert [item["id"] for item in json_object(response)["items"]] == found
        assert_problem(await client.get(services_path(zone), params={"health": "x"}), 400, "invalid_query")
        assert_problem(await client.get(zone.session_path("none", "/services")), 404, "agent_not_found")
