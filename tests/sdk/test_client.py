"""The client against a real server: resources, refusals and discovery of the server."""

from __future__ import annotations

import pytest

from quarterdeck.core.caller import LIFECYCLE
from quarterdeck.sdk import Options, Quarterdeck, resource
from quarterdeck.sdk.errors import KeyConflict, LimitReached, NotFound, TimedOut, Unauthenticated
from tests.sdk.fake_servers import collect, sdk_client
from tests.support.server import ServerProcess
from tests.support.zone import APP, FreshZone, create_zone

NO_RETRIES = Options(patience=0.0)


async def test_session_is_spawned_read_suspended_resumed_and_ended(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        root = await qd.sessions.spawn(APP, metadata={"role": "planner"}, ttl_seconds=600)
        child = await qd.sessions.spawn(APP, parent_id=root.id)
        assert (root.depth, child.depth, child.root_id) == (0, 1, root.id)
        assert root.metadata == {"role": "planner"}
        assert child.expires_at <= root.expires_at
        assert await qd.sessions.get(child.id) == child
        assert [session.id for session in await qd.sessions.tree(root.id)] == [root.id, child.id]
        assert [session.id for session in await collect(qd.sessions.children(root.id))] == [child.id]

        assert await qd.sessions.suspend(root.id) == 2
        assert (await qd.sessions.get(child.id)).status == "suspended"
        assert await qd.sessions.resume(root.id) == 2

        receipt = await qd.sessions.end(root.id, reason="work finished")
        assert (receipt.stopped, receipt.left, receipt.reason) == (2, [], "work finished")
        assert (await qd.sessions.end(root.id)).stopped == 0
        ended = await qd.sessions.get(child.id)
        assert (ended.status, ended.is_live) == ("terminated", False)


async def test_list_yields_every_page(zone: FreshZone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource.Resource, "_page_size", 2)
    async with sdk_client(zone) as qd:
        session_ids = [(await qd.sessions.spawn(APP)).id for _ in range(5)]
        assert [session.id for session in await collect(qd.sessions.list())] == session_ids[::-1]
        assert await collect(qd.sessions.list(status="terminated")) == []


async def test_same_key_returns_the_same_session_and_conflicts_on_other_input(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        first = await qd.sessions.spawn(APP, key="research-1")
        assert (await qd.sessions.spawn(APP, key="research-1")).id == first.id
        with pytest.raises(KeyConflict) as caught:
            await qd.sessions.spawn(APP, key="research-1", ttl_seconds=7)
    assert caught.value.code == "idempotency_key_conflict"


async def test_in_zone_clients_register_close_callbacks_only_while_waiting(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        for _ in range(10):
            qd.in_zone("other")
        assert not qd._transport._close_callbacks
        service = await qd.services.register(APP, "http://worker.invalid/app")
        invocation = await qd.invocations.enqueue(service.id, "never")
        with pytest.raises(TimedOut):
            await qd.in_zone(zone.id).invocations.wait(invocation.id, timeout=0.01)
        assert len(qd._transport._close_callbacks or ()) == 1
    assert qd._transport._close_callbacks is None


async def test_refusal_contains_bound_limit_usage_and_retry_after(server: ServerProcess) -> None:
    zone = await create_zone(server, max_sessions=1)
    async with sdk_client(zone, options=NO_RETRIES) as qd:
        await qd.sessions.spawn(APP)
        with pytest.raises(LimitReached) as caught:
            await qd.sessions.spawn(APP)
    problem = caught.value
    assert (problem.code, problem.bound) == ("agent_zone_limit_exceeded", "max_sessions")
    assert (problem.limit, problem.used) == (1, 1)
    assert problem.frees
    assert problem.retry_after
    assert problem.detail.endswith(".")


async def test_missing_object_raises_not_found(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        with pytest.raises(NotFound) as caught:
            await qd.sessions.get("no-such-session")
        assert caught.value.code == "agent_not_found"
        with pytest.raises(NotFound):
            await qd.services.find("no-such-app")


async def test_unknown_option_raises_type_error(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        with pytest.raises(TypeError, match="parent"):
            await qd.sessions.spawn(APP, parent="x")  # type: ignore[call-arg]  # an unknown option on purpose


async def test_service_is_registered_patched_found_and_unregistered(zone: FreshZone) -> None:
    async with sdk_client(zone) as qd:
        service = await qd.services.register(APP, "http://worker.invalid/app", capabilities=["a"])
        updated = await qd.services.register(APP, "http://worker.invalid/app", health="healthy")
        assert (updated.id, updated.health, updated.capabilities) == (service.id, "healthy", ["a"])
        changed = await qd.services.patch(service.id, metadata={"x": 1}, health="degraded")
        assert (changed.metadata_json, changed.health) == ({"x": 1}, "degraded")
        await qd.services.heartbeat(service.id, active_invocations=3)
        found = await qd.services.find(APP)
        assert (found.id, found.active_invocations) == (service.id, 3)
        assert found.last_heartbeat_at is not None
        await qd.services.unregister(service.id)
        assert await collect(qd.services.list(application_id=APP)) == []


async def test_delegation_is_created_listed_and_revoked(zone: FreshZone) -> None:
    token = zone.token(LIFECYCLE, "files:read")
    async with Quarterdeck.connect(zone.server.url, token, zone.id) as qd:
        source, target = await qd.sessions.spawn(APP), await qd.sessions.spawn(APP)
        edge = await qd.delegations.create(source.id, target.id, scopes=["files:read"], ttl_seconds=60)
        assert (edge.status, edge.scopes) == ("active", ["files:read"])
        assert [each.id for each in await collect(qd.delegations.list(target=target.id))] == [edge.id]
        assert (await qd.delegations.authority(target.id)).scopes == ["files:read"]
        revoked = await qd.delegations.revoke(edge.id)
        assert (revoked.revoked_edges, revoked.terminated_agents) == (1, 1)
        assert (await qd.delegations.get(edge.id)).status == "revoked"
        assert not (await qd.sessions.get(target.id)).is_live


async def test_admin_can_freeze_thaw_change_and_stop_a_zone(zone: FreshZone) -> None:
    async with Quarterdeck.connect(zone.server.url, zone.server.admin_token, zone.id) as qd:
        await qd.sessions.spawn(APP)
        assert (await qd.zones.freeze()).frozen
        assert not (await qd.zones.thaw()).frozen
        assert (await qd.zones.put(name="ours", quotas={"max_depth": 3})).name == "ours"
        quotas = await qd.zones.quotas()
        assert (quotas.limits["max_depth"], quotas.used.sessions) == (3, 1)
        receipt = await qd.zones.stop(reason="maintenance")
        assert receipt.stopped == 1
        assert (await qd.zones.get()).frozen


# -- finding the server


async def test_server_and_token_are_found_from_the_data_directory(zone: FreshZone) -> None:
    async with Quarterdeck.connect(data=str(zone.server.launch.data), zone=zone.id) as qd:
        assert (await qd.zones.get()).id == zone.id
        async with sdk_client(zone) as other:
            session = await other.sessions.spawn(APP)
        assert (await qd.sessions.get(session.id)).id == session.id


async def test_url_token_and_zone_come_from_the_environment(zone: FreshZone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QD_URL", zone.server.url)
    monkeypatch.setenv("QD_TOKEN", zone.token())
    monkeypatch.setenv("QD_ZONE", zone.id)
    async with Quarterdeck.connect() as qd:
        assert qd.zone == zone.id
        assert (await qd.sessions.spawn(APP)).zone_id == zone.id


async def test_missing_token_is_refused_before_sending(
    zone: FreshZone, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.delenv("QD_TOKEN", raising=False)
    monkeypatch.setenv("QD_DATA", str(tmp_path_factory.mktemp("other")))
    async with Quarterdeck.connect(zone.server.url) as qd:
        with pytest.raises(Unauthenticated) as caught:
            await qd.zones.get()
    assert caught.value.code == "missing_token"


async def test_rejected_token_is_fetched_again_once(zone: FreshZone) -> None:
    tokens = [zone.token() + "x", zone.token()]
    requested: list[str] = []

    def source() -> str:
        requested.append(tokens[min(len(requested), 1)])
        return requested[-1]

    async with Quarterdeck.connect(zone.server.url, source, zone.id) as qd:
        await qd.sessions.spawn(APP)
    assert len(requested) == 2
    async with Quarterdeck.connect(zone.server.url, lambda: tokens[0], zone.id) as qd:
        with pytest.raises(Unauthenticated):
            await qd.sessions.spawn(APP)


async def test_in_zone_client_reaches_another_zone(server: ServerProcess) -> None:
    one, other = await create_zone(server), await create_zone(server)
    async with Quarterdeck.connect(server.url, server.admin_token, one.id) as qd:
        session = await qd.in_zone(other.id).sessions.spawn(APP)
        assert session.zone_id == other.id
        assert await collect(qd.sessions.list()) == []
