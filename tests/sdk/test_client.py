"""The client against a real server: its nouns, its refusals, its ways to the server."""

from __future__ import annotations

import pytest

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.sdk import Options, Quarterdeck, resource
from quarterdeck.sdk.errors import KeyConflict, LimitReached, NotFound, TimedOut, Unauthenticated
from tests.sdk.fake_servers import collect, sdk_client
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, create_zone

AT_ONCE = Options(patience=0.0)


async def test_a_session_is_spawned_looked_at_put_to_sleep_woken_and_ended(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        root = await qd.sessions.spawn(APP, metadata={"who": "planner"}, ttl_seconds=600)
        child = await qd.sessions.spawn(APP, parent_id=root.id)
        assert (root.depth, child.depth, child.root_id) == (0, 1, root.id)
        assert root.metadata == {"who": "planner"}
        assert child.expires_at <= root.expires_at
        assert await qd.sessions.get(child.id) == child
        assert [session.id for session in await qd.sessions.tree(root.id)] == [root.id, child.id]
        assert [session.id for session in await collect(qd.sessions.children(root.id))] == [child.id]

        assert await qd.sessions.suspend(root.id) == 2
        assert (await qd.sessions.get(child.id)).status == "suspended"
        assert await qd.sessions.resume(root.id) == 2

        receipt = await qd.sessions.end(root.id, reason="that is enough")
        assert (receipt.stopped, receipt.left, receipt.reason) == (2, [], "that is enough")
        assert (await qd.sessions.end(root.id)).stopped == 0
        ended = await qd.sessions.get(child.id)
        assert (ended.status, ended.is_live) == ("terminated", False)


async def test_a_list_gives_every_page_as_it_is_asked_for(zone: FreshZone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "PAGE_SIZE", 2)
    async with sdk_client(zone) as qd:
        made = [(await qd.sessions.spawn(APP)).id for _ in range(5)]
        assert [session.id for session in await collect(qd.sessions.list())] == made[::-1]
        assert await collect(qd.sessions.list(status="terminated")) == []


async def test_a_key_stands_for_one_session_and_for_nothing_else(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        first = await qd.sessions.spawn(APP, key="research-1")
        assert (await qd.sessions.spawn(APP, key="research-1")).id == first.id
        with pytest.raises(KeyConflict) as told:
            await qd.sessions.spawn(APP, key="research-1", ttl_seconds=7)
    assert told.value.code == "idempotency_key_conflict"


async def test_clients_for_other_zones_leave_nothing_behind_and_one_that_waits_ends_with_the_rest(
    zone: FreshZone,
) -> None:
    async with sdk_client(zone) as qd:
        for _ in range(10):
            qd.in_zone("other")
        assert not qd._transport._close_callbacks
        service = await qd.services.register(APP, "http://worker.invalid/app")
        asked = await qd.invocations.enqueue(service.id, "never")
        with pytest.raises(TimedOut):
            await qd.in_zone(zone.id).invocations.wait(asked.id, timeout=0.01)
        assert len(qd._transport._close_callbacks or ()) == 1
    assert qd._transport._close_callbacks is None


async def test_a_refusal_explains_itself(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with sdk_client(zone, options=AT_ONCE) as qd:
        await qd.sessions.spawn(APP)
        with pytest.raises(LimitReached) as told:
            await qd.sessions.spawn(APP)
    problem = told.value
    assert (problem.code, problem.bound) == ("agent_zone_limit_exceeded", "max_sessions")
    assert (problem.limit, problem.used) == (1, 1)
    assert problem.frees
    assert problem.retry_after
    assert problem.detail.endswith(".")


async def test_what_is_not_there_is_not_found(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        with pytest.raises(NotFound) as told:
            await qd.sessions.get("nobody")
        assert told.value.code == "agent_not_found"
        with pytest.raises(NotFound):
            await qd.services.find("nobody")


async def test_an_option_that_does_not_exist_is_a_mistake_and_not_ignored(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        with pytest.raises(TypeError, match="parent"):
            await qd.sessions.spawn(APP, parent="x")  # type: ignore[call-arg]  # the mistake


async def test_a_service_is_registered_described_found_and_taken_back(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        made = await qd.services.register(APP, "http://worker.invalid/app", capabilities=["a"])
        again = await qd.services.register(APP, "http://worker.invalid/app", health="healthy")
        assert (again.id, again.health, again.capabilities) == (made.id, "healthy", ["a"])
        changed = await qd.services.patch(made.id, metadata={"x": 1}, health="degraded")
        assert (changed.metadata_json, changed.health) == ({"x": 1}, "degraded")
        await qd.services.heartbeat(made.id, active_invocations=3)
        found = await qd.services.find(APP)
        assert (found.id, found.active_invocations) == (made.id, 3)
        assert found.last_heartbeat_at is not None
        await qd.services.unregister(made.id)
        assert await collect(qd.services.list(application_id=APP)) == []


async def test_authority_is_lent_shown_and_taken_back(zone: FreshZone) -> None:
    token = zone.token(LIFECYCLE, "files:read")
    async with Quarterdeck.connect(zone.server.url, token, zone.id) as qd:
        lender, borrower = await qd.sessions.spawn(APP), await qd.sessions.spawn(APP)
        edge = await qd.delegations.create(lender.id, borrower.id, scopes=["files:read"], ttl_seconds=60)
        assert (edge.status, edge.scopes) == ("active", ["files:read"])
        assert [each.id for each in await collect(qd.delegations.list(target=borrower.id))] == [edge.id]
        assert (await qd.delegations.authority(borrower.id)).scopes == ["files:read"]
        revoked = await qd.delegations.revoke(edge.id)
        assert (revoked.revoked_edges, revoked.terminated_agents) == (1, 1)
        assert (await qd.delegations.get(edge.id)).status == "revoked"
        assert not (await qd.sessions.get(borrower.id)).is_live


async def test_the_brakes_of_a_zone_are_an_administrators(zone: FreshZone) -> None:
    async with Quarterdeck.connect(zone.server.url, zone.server.admin_token, zone.id) as qd:
        await qd.sessions.spawn(APP)
        assert (await qd.zones.freeze()).frozen
        assert not (await qd.zones.thaw()).frozen
        assert (await qd.zones.put(name="ours", quotas={"max_depth": 3})).name == "ours"
        quotas = await qd.zones.quotas()
        assert (quotas.limits["max_depth"], quotas.used.sessions) == (3, 1)
        receipt = await qd.zones.stop(reason="enough")
        assert receipt.stopped == 1
        assert (await qd.zones.get()).frozen


# -- finding the server


async def test_the_server_of_a_data_directory_is_found_with_its_token(zone: FreshZone) -> None:
    async with Quarterdeck.connect(data=str(zone.server.launch.data), zone=zone.id) as qd:
        assert (await qd.zones.get()).id == zone.id
        async with sdk_client(zone) as other:
            made = await other.sessions.spawn(APP)
        assert (await qd.sessions.get(made.id)).id == made.id


async def test_the_environment_says_where_what_and_in_which_zone(
    zone: FreshZone, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QD_URL", zone.server.url)
    monkeypatch.setenv("QD_TOKEN", zone.token())
    monkeypatch.setenv("QD_ZONE", zone.id)
    async with Quarterdeck.connect() as qd:
        assert qd.zone == zone.id
        assert (await qd.sessions.spawn(APP)).zone_id == zone.id


async def test_without_a_token_the_refusal_comes_before_anything_is_sent(
    zone: FreshZone, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delenv("QD_TOKEN", raising=False)
    monkeypatch.setenv("QD_DATA", str(tmp_path_factory.mktemp("elsewhere")))
    async with Quarterdeck.connect(zone.server.url) as qd:
        with pytest.raises(Unauthenticated) as told:
            await qd.zones.get()
    assert told.value.code == "missing_token"


async def test_a_token_that_is_no_longer_good_is_asked_for_again_and_once(zone: FreshZone) -> None:
    tokens = [zone.token() + "x", zone.token()]
    asked: list[str] = []

    def source() -> str:
        asked.append(tokens[min(len(asked), 1)])
        return asked[-1]

    async with Quarterdeck.connect(zone.server.url, source, zone.id) as qd:
        await qd.sessions.spawn(APP)
    assert len(asked) == 2
    async with Quarterdeck.connect(zone.server.url, lambda: tokens[0], zone.id) as qd:
        with pytest.raises(Unauthenticated):
            await qd.sessions.spawn(APP)


async def test_other_zones_are_reached_over_the_same_connections(server: ServerProcess) -> None:
    one, other = await create_zone(server), await create_zone(server)
    async with Quarterdeck.connect(server.url, server.admin_token, one.id) as qd:
        made = await qd.in_zone(other.id).sessions.spawn(APP)
        assert made.zone_id == other.id
        assert await collect(qd.sessions.list()) == []
