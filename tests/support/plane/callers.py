"""Clients that call: they register services, invoke and cancel; and clients that lend authority and take it back."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.caller import LIFECYCLE
from tests.support.plane.caller import APPLICATION, Ask
from tests.support.plane.client import Client, Deed
from tests.support.plane.known import one_of

RETRYING = {"max_attempts": 3, "backoff_ms": 50, "multiplier": 2}


class Invoker(Client):
    def deeds(self) -> Mapping[Deed, int]:
        return {self.invoke: 60, self.repeat: 5, self.cancel: 10, self.register: 2, self.register_for_one: 3}

    async def register(self) -> bool:
        """Of the application: it stays."""
        return await self._register({"application_id": APPLICATION})

    async def register_for_one(self) -> bool:
        """Of a session: it goes with it, and what waits for it does, too."""
        session = one_of(self.chance, self.known.sessions)
        return bool(session) and await self._register({"application_id": APPLICATION, "agent_id": session})

    async def _register(self, body: dict[str, object]) -> bool:
        url = f"https://agents.example.com/{self.chance.randrange(8)}"
        ask = Ask("register", "POST", "/agent-services", {**body, "endpoint_url": url}, body)
        reply = await self.caller.ask(ask)
        if reply.ok and reply.text("id") not in self.known.services:
            self.known.services.append(reply.text("id"))
        return True

    async def invoke(self) -> bool:
        named: dict[str, object] = {}
        for name in ("source_session_id", "target_session_id"):
            session = one_of(self.chance, self.known.sessions)
            if session and self.chance.random() < 0.4:
                named[name] = session
        return await self._invoke(self.fresh("call"), named)

    async def repeat(self) -> bool:
        """Under a key that others use at the same time; of those who ask for other than the first, each is refused."""
        return await self._invoke(f"repeated-{self.chance.randrange(20)}", {})

    async def _invoke(self, key: str, sessions: dict[str, object]) -> bool:
        service = one_of(self.chance, self.known.services)
        if service is None:
            return await self.register()
        named = {"service_id": service, **sessions}
        timeout = self.chance.choice((400, 3_000, 10_000))
        body = {**named, "method": "work", "timeout_ms": timeout, "retry_policy": RETRYING}
        asked = {**named, "idempotency_key": key}
        reply = await self.caller.ask_until_known(Ask("invoke", "POST", "/invocations", body, asked, key=key))
        if reply.ok:
            self.known.invocations.append(reply.text("id"))
        return True

    async def cancel(self) -> bool:
        name = one_of(self.chance, self.known.invocations)
        if name is None:
            return False
        ask = Ask("cancel", "POST", f"/invocations/{name}/cancel", {"reason": "enough"}, {"id": name})
        await self.caller.ask(ask)
        return True


class Lender(Client):
    def deeds(self) -> Mapping[Deed, int]:
        return {self.lend: 12, self.revoke: 2, self.revoke_and_keep: 4}

    async def lend(self) -> bool:
        source = one_of(self.chance, self.known.sessions)
        target = one_of(self.chance, self.known.sessions)
        if source is None or target is None:
            return False
        named: dict[str, object] = {"source_session_id": source, "target_session_id": target}
        body = {**named, "scopes": [LIFECYCLE], "ttl_seconds": self.chance.choice((2, 600))}
        reply = await self.caller.ask(Ask("delegate", "POST", "/delegations", body, named))
        if reply.ok:
            self.known.edges.append(reply.text("id"))
        return True

    async def revoke(self) -> bool:
        return await self._revoke("false")

    async def revoke_and_keep(self) -> bool:
        return await self._revoke("true")

    async def _revoke(self, keep: str) -> bool:
        edge = one_of(self.chance, self.known.edges)
        if edge is None:
            return False
        ask = Ask("revoke", "DELETE", f"/delegations/{edge}?keep_sessions={keep}", asked={"id": edge})
        await self.caller.ask_until_known(ask)
        return True
