"""Clients that tend sessions: they spawn trees, end them, let them sleep and wake; and one that moves the limits."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.plane.caller import Ask, Caller
from tests.support.plane.client import Client, Deed
from tests.support.plane.known import one_of

SHARED_KEYS = 6
APPLICATIONS = ("app", "other")


class Tender(Client):
    def deeds(self) -> Mapping[Deed, int]:
        return {
            self.plant: 20,
            self.grow: 45,
            self.grow_for_itself: 10,
            self.share_a_key: 15,
            self.end_one: 8,
            self.end_a_tree: 6,
            self.suspend: 5,
            self.resume: 7,
        }

    async def plant(self) -> bool:
        return await self._spawn({}, self.fresh("root"))

    async def grow(self) -> bool:
        parent = self._anybody()
        return bool(parent) and await self._spawn({"parent_id": parent}, self.fresh("child"))

    async def grow_for_itself(self) -> bool:
        """A session spawns under itself, with its own token: good only while it lives."""
        parent = self._anybody()
        return bool(parent) and await self._spawn({"parent_id": parent}, self.fresh("own"), parent)

    async def share_a_key(self) -> bool:
        """With a key that others use at the same time, for the same: one of all makes, while it lives."""
        number = self.chance.randrange(SHARED_KEYS)
        same = {"application_id": APPLICATIONS[number % 2], "session_sid": "shared", "ttl_seconds": 3}
        return await self._spawn(same, f"shared-{number}")

    async def _spawn(self, more: dict[str, object], key: str, session: str | None = None) -> bool:
        body: dict[str, object] = {
            "application_id": self.chance.choice(APPLICATIONS),
            "ttl_seconds": self.chance.choice((1, 2, 60, 600, 600)),
            **more,
        }
        asked: dict[str, object] = {
            "application_id": body["application_id"],
            "parent_id": body.get("parent_id"),
            "idempotency_key": key,
        }
        ask = Ask("spawn", "POST", "/agents", body, asked, session, key)
        reply = await self.caller.ask_until_known(ask)
        if reply.ok:
            self.known.sessions.append(reply.text("id"))
            if "parent_id" not in body:
                self.known.roots.append(reply.text("id"))
        return True

    async def end_one(self) -> bool:
        return await self._end(self._anybody())

    async def end_a_tree(self) -> bool:
        return await self._end(one_of(self.chance, self.known.roots))

    async def _end(self, session: str | None) -> bool:
        if session is None:
            return False
        ask = Ask("terminate", "DELETE", f"/agents/{session}?reason=enough", asked={"id": session})
        reply = await self.caller.ask_until_known(ask)
        # One in a while is remembered: somebody will try to act with it.
        if reply.ok and self.chance.random() < 0.7:
            self.known.forget(session)
        return True

    async def suspend(self) -> bool:
        return await self._tell("suspend")

    async def resume(self) -> bool:
        return await self._tell("resume")

    async def _tell(self, verb: str) -> bool:
        session = self._anybody()
        if session is None:
            return False
        await self.caller.ask(Ask(verb, "POST", f"/agents/{session}/{verb}", {}, {"id": session}))
        return True

    def _anybody(self) -> str | None:
        return one_of(self.chance, self.known.sessions)


WIDE = {
    "max_sessions": 60,
    "max_sessions_per_application": 40,
    "max_children": 5,
    "max_tree_size": 12,
    "max_tree_spawns": 60,
    "max_concurrent": 40,
    "max_depth": 4,
}
NARROW: tuple[dict[str, int], ...] = (
    {"max_sessions": 30},
    {"max_sessions_per_application": 15},
    {"max_children": 2},
    {"max_tree_size": 5},
    {"max_tree_spawns": 10},
    {"max_concurrent": 15},
    {"max_depth": 1},
)
"""One of them at a time, so that each has its turn at refusing."""


class Narrower(Client):
    """Moves the limits of its zone, again and again: what is admitted is judged by those of the moment."""

    def __init__(self, caller: Caller, admin_token: str) -> None:
        super().__init__(caller)
        self._admin_token = admin_token

    def deeds(self) -> Mapping[Deed, int]:
        return {self.narrow: 3, self.widen: 1}

    async def narrow(self) -> bool:
        return await self._set({**WIDE, **self.chance.choice(NARROW)})

    async def widen(self) -> bool:
        return await self._set(WIDE)

    async def _set(self, quotas: dict[str, int]) -> bool:
        """And looks around, so that limits stand for a while."""
        body: dict[str, object] = {**quotas}
        await self.caller.ask(Ask("quotas", "PUT", "/quotas", body, body, token=self._admin_token))
        return False
