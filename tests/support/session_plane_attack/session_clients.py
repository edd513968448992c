"""Clients that spawn, terminate, suspend and resume sessions, and one that changes quotas."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.session_plane_attack.random_client import Action, RandomClient
from tests.support.session_plane_attack.recording_client import ApiCall, RecordingClient
from tests.support.session_plane_attack.run_state import choose

SHARED_KEYS = 6
APPLICATIONS = ("app", "other")


class SessionClient(RandomClient):
    def action_weights(self) -> Mapping[Action, int]:
        return {
            self.spawn_root: 20,
            self.spawn_child: 45,
            self.spawn_as_parent: 10,
            self.spawn_with_shared_key: 15,
            self.end_session: 8,
            self.end_tree: 6,
            self.suspend: 5,
            self.resume: 7,
        }

    async def spawn_root(self) -> bool:
        return await self._spawn({}, self.new_name("root"))

    async def spawn_child(self) -> bool:
        parent = self._choose_session()
        return bool(parent) and await self._spawn({"parent_id": parent}, self.new_name("child"))

    async def spawn_as_parent(self) -> bool:
        """Spawn a child with the parent's own token, which is valid only while the parent is live."""
        parent = self._choose_session()
        return bool(parent) and await self._spawn({"parent_id": parent}, self.new_name("own"), parent)

    async def spawn_with_shared_key(self) -> bool:
        """Spawn with a key that other clients use at the same time. Only one creates a session while it is live."""
        number = self.rng.randrange(SHARED_KEYS)
        shared_fields = {"application_id": APPLICATIONS[number % 2], "session_sid": "shared", "ttl_seconds": 3}
        return await self._spawn(shared_fields, f"shared-{number}")

    async def _spawn(self, fields: dict[str, object], key: str, session: str | None = None) -> bool:
        body: dict[str, object] = {
            "application_id": self.rng.choice(APPLICATIONS),
            "ttl_seconds": self.rng.choice((1, 2, 60, 600, 600)),
            **fields,
        }
        recorded: dict[str, object] = {
            "application_id": body["application_id"],
            "parent_id": body.get("parent_id"),
            "idempotency_key": key,
        }
        call = ApiCall("spawn", "POST", "/agents", body, recorded, session, key)
        response = await self.caller.send_until_known(call)
        if response.is_success:
            self.known_ids.sessions.append(response.text("id"))
            if "parent_id" not in body:
                self.known_ids.roots.append(response.text("id"))
        return True

    async def end_session(self) -> bool:
        return await self._end(self._choose_session())

    async def end_tree(self) -> bool:
        return await self._end(choose(self.rng, self.known_ids.roots))

    async def _end(self, session: str | None) -> bool:
        if session is None:
            return False
        call = ApiCall("terminate", "DELETE", f"/agents/{session}?reason=requested", recorded_request={"id": session})
        response = await self.caller.send_until_known(call)
        # Some ended sessions stay known, so that clients try to use them.
        if response.is_success and self.rng.random() < 0.7:
            self.known_ids.remove_session(session)
        return True

    async def suspend(self) -> bool:
        return await self._change_suspension("suspend")

    async def resume(self) -> bool:
        return await self._change_suspension("resume")

    async def _change_suspension(self, verb: str) -> bool:
        session = self._choose_session()
        if session is None:
            return False
        await self.caller.send(ApiCall(verb, "POST", f"/agents/{session}/{verb}", {}, {"id": session}))
        return True

    def _choose_session(self) -> str | None:
        return choose(self.rng, self.known_ids.sessions)


WIDE_QUOTAS = {
    "max_sessions": 60,
    "max_sessions_per_application": 40,
    "max_children": 5,
    "max_tree_size": 12,
    "max_tree_spawns": 60,
    "max_concurrent": 40,
    "max_depth": 4,
}
NARROW_QUOTAS: tuple[dict[str, int], ...] = (
    {"max_sessions": 30},
    {"max_sessions_per_application": 15},
    {"max_children": 2},
    {"max_tree_size": 5},
    {"max_tree_spawns": 10},
    {"max_concurrent": 15},
    {"max_depth": 1},
)
"""One at a time, so that each quota refuses something."""


class QuotaClient(RandomClient):
    """Changes the quotas of its zone again and again. An admission is checked against the quotas of its moment."""

    def __init__(self, caller: RecordingClient, admin_token: str) -> None:
        super().__init__(caller)
        self._admin_token = admin_token

    def action_weights(self) -> Mapping[Action, int]:
        return {self.narrow: 3, self.widen: 1}

    async def narrow(self) -> bool:
        return await self._set_quotas({**WIDE_QUOTAS, **self.rng.choice(NARROW_QUOTAS)})

    async def widen(self) -> bool:
        return await self._set_quotas(WIDE_QUOTAS)

    async def _set_quotas(self, quotas: dict[str, int]) -> bool:
        """Set the quotas. Returns False: the listing that follows keeps them in force for a while."""
        body: dict[str, object] = {**quotas}
        await self.caller.send(ApiCall("quotas", "PUT", "/quotas", body, body, token=self._admin_token))
        return False
