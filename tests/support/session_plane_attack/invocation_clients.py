"""Clients that register services, invoke and cancel, and clients that delegate and revoke."""

from __future__ import annotations

from collections.abc import Mapping

from quarterdeck.core.caller import LIFECYCLE
from tests.support.session_plane_attack.random_client import Action, RandomClient
from tests.support.session_plane_attack.recording_client import APPLICATION, ApiCall
from tests.support.session_plane_attack.run_state import choose

RETRY_POLICY = {"max_attempts": 3, "backoff_ms": 50, "multiplier": 2}


class Invoker(RandomClient):
    def action_weights(self) -> Mapping[Action, int]:
        return {self.invoke: 60, self.repeat: 5, self.cancel: 10, self.register: 2, self.register_for_session: 3}

    async def register(self) -> bool:
        """Register a service of the application, which outlives sessions."""
        return await self._register({"application_id": APPLICATION})

    async def register_for_session(self) -> bool:
        """Register a service of a session. It ends with the session, and so do its pending invocations."""
        session = choose(self.rng, self.known_ids.sessions)
        return bool(session) and await self._register({"application_id": APPLICATION, "agent_id": session})

    async def _register(self, body: dict[str, object]) -> bool:
        url = f"https://agents.example.com/{self.rng.randrange(8)}"
        call = ApiCall("register", "POST", "/agent-services", {**body, "endpoint_url": url}, body)
        response = await self.caller.send(call)
        if response.is_success and response.text("id") not in self.known_ids.services:
            self.known_ids.services.append(response.text("id"))
        return True

    async def invoke(self) -> bool:
        refs: dict[str, object] = {}
        for name in ("source_session_id", "target_session_id"):
            session = choose(self.rng, self.known_ids.sessions)
            if session and self.rng.random() < 0.4:
                refs[name] = session
        return await self._invoke(self.new_name("call"), refs)

    async def repeat(self) -> bool:
        """Invoke with a key that other clients use too. A request that differs from the first is refused."""
        return await self._invoke(f"repeated-{self.rng.randrange(20)}", {})

    async def _invoke(self, key: str, sessions: dict[str, object]) -> bool:
        service = choose(self.rng, self.known_ids.services)
        if service is None:
            return await self.register()
        refs = {"service_id": service, **sessions}
        timeout = self.rng.choice((400, 3_000, 10_000))
        body = {**refs, "method": "work", "timeout_ms": timeout, "retry_policy": RETRY_POLICY}
        recorded = {**refs, "idempotency_key": key}
        response = await self.caller.send_until_known(
            ApiCall("invoke", "POST", "/invocations", body, recorded, key=key)
        )
        if response.is_success:
            self.known_ids.invocations.append(response.text("id"))
        return True

    async def cancel(self) -> bool:
        invocation_id = choose(self.rng, self.known_ids.invocations)
        if invocation_id is None:
            return False
        call = ApiCall(
            "cancel", "POST", f"/invocations/{invocation_id}/cancel", {"reason": "requested"}, {"id": invocation_id}
        )
        await self.caller.send(call)
        return True


class Delegator(RandomClient):
    def action_weights(self) -> Mapping[Action, int]:
        return {self.delegate: 12, self.revoke: 2, self.revoke_keeping_sessions: 4}

    async def delegate(self) -> bool:
        source = choose(self.rng, self.known_ids.sessions)
        target = choose(self.rng, self.known_ids.sessions)
        if source is None or target is None:
            return False
        refs: dict[str, object] = {"source_session_id": source, "target_session_id": target}
        body = {**refs, "scopes": [LIFECYCLE], "ttl_seconds": self.rng.choice((2, 600))}
        response = await self.caller.send(ApiCall("delegate", "POST", "/delegations", body, refs))
        if response.is_success:
            self.known_ids.edges.append(response.text("id"))
        return True

    async def revoke(self) -> bool:
        return await self._revoke("false")

    async def revoke_keeping_sessions(self) -> bool:
        return await self._revoke("true")

    async def _revoke(self, keep_sessions: str) -> bool:
        edge = choose(self.rng, self.known_ids.edges)
        if edge is None:
            return False
        call = ApiCall(
            "revoke", "DELETE", f"/delegations/{edge}?keep_sessions={keep_sessions}", recorded_request={"id": edge}
        )
        await self.caller.send_until_known(call)
        return True
