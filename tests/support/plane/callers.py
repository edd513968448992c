"""Clients that call: they register services, invoke and cancel; and clients that lend authority and take it back."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.wire import LIFECYCLE
from tests.support.plane.caller import APPLICATION, Ask
from tests.support.plane.client import Client, Deed
from tests.support.plane.known import one_of

RETRYING = {"max_attempts": 3, "backoff_ms": 50, "multiplier": 2}


class Invoker(Client):
    def deeds(self) -> Mapping[Deed, int]:
        return {self.invoke: 60, self.repeat: 5, self.cancel: 10, self.register: 2, self.register_for_one: 3}

    async def register(self) -> None:
        """Of the application: it stays."""
        await self._register({"application_id": APPLICATION})

    async def register_for_one(self) -> None:
        """Of a session: it goes with it, and what waits for it does, too."""
        if session := one_of(self.chance, self.known.sessions):
            await self._register({"application_id": APPLICATION, "agent_id": session})

    async def _register(self, body: dict[str, object]) -> None:
        url = f"https://agents.example.com/{self.chance.randrange(8)}"
        ask = Ask("register", "POST", "/agent-services", {**body, "endpoint_url": url}, body)
        reply = await self.caller.ask(ask)
        if reply.ok and reply.text("id") not in self.known.services:
            self.known.services.append(reply.text("id"))

    async def invoke(self) -> None:
        named: dict[str, object] = {}
        for name in ("source_session_id", "target_session_id"):
            session = one_of(self.chance, self.known.sessions)
            if session and self.chance.random() < 0.4:
                named[name] = session
        await self._invoke(self.fresh("call"), named)

    async def repeat(self) -> None:
        """Under a key that others use at the same time; of those who ask for other than the first, each is refused."""
        await self._invoke(f"repeated-{self.chance.randrange(20)}", {})

    async def _invoke(self, key: str, sessions: dict[str, object]) -> None:
        service = one_of(self.chance, self.known.services)
        if service is None:
            await self.register()
            return
        named = {"service_id": service, **sessions}
        timeout = self.chance.choice((400, 3_000, 10_000))
        body = {**named, "method": "work", "timeout_ms": timeout, "retry_policy": RETRYING}
        asked = {**named, "idempotency_key": key}
        reply = await self.caller.ask_until_known(Ask("invoke", "POST", "/invocations", body, asked, key=key))
        if reply.ok:
            self.known.invocations.append(reply.text("id"))

    async def cancel(self) -> None:
        if name := one_of(self.chance, self.known.invocations):
            ask = Ask("cancel", "POST", f"/invocations/{name}/cancel", {"reason": "enough"}, {"id": name})
            await self.caller.ask(ask)


class Lender(Client):
    def deeds(self) -> Mapping[Deed, int]:
        return {self.lend: 12, self.revoke: 2, self.revoke_and_keep: 4}

    async def lend(self) -> None:
        source = one_of(self.chance, self.known.sessions)
        target = one_of(self.chance, self.known.sessions)
        if source is None or target is None:
            return
        named: dict[str, object] = {"source_session_id": source, "target_session_id": target}
        body = {**named, "scopes": [LIFECYCLE], "ttl_seconds": self.chance.choice((2, 600))}
        reply = await self.caller.ask(Ask("delegate", "POST", "/delegations", body, named))
        if reply.ok:
            self.known.edges.append(reply.text("id"))

    async def revoke(self) -> None:
        await self._revoke("false")

    async def revoke_and_keep(self) -> None:
        await self._revoke("true")

    async def _revoke(self, keep: str) -> None:
        if edge := one_of(self.chance, self.known.edges):
            ask = Ask("revoke", "DELETE", f"/delegations/{edge}?keep_sessions={keep}", asked={"id": edge})
            await self.caller.ask_until_known(ask)
