"""Clients that claim and complete invocations. They also release them, report late or for lost attempts, and disconnect
before the response."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.session_plane_attack.random_client import Action, RandomClient
from tests.support.session_plane_attack.recording_client import ApiCall, ApiResponse, RecordingClient
from tests.support.session_plane_attack.run_state import choose


@dataclass(frozen=True)
class HeldInvocation:
    id: str
    token: str


class WorkerClient(RandomClient):
    def __init__(self, caller: RecordingClient) -> None:
        super().__init__(caller)
        self._held: deque[HeldInvocation] = deque(maxlen=30)
        """Attempts that it claimed and has not reported. Some have expired."""

    def action_weights(self) -> Mapping[Action, int]:
        return {
            self.work: 50,
            self.work_in_bulk: 15,
            self.claim_without_report: 15,
            self.report_late: 15,
            self.release: 5,
            self.release_late: 3,
            self.heartbeat: 8,
            self.start: 6,
            self.abandon_claim: 3,
        }

    # -- claims

    async def work(self) -> bool:
        claimed = await self._claim(2)
        for held in claimed:
            await self._complete(held)
        return bool(claimed)

    async def work_in_bulk(self) -> bool:
        claimed = await self._claim(8)
        status = self._choose_status()
        items = [{"id": held.id, "attempt_token": held.token, "status": status} for held in claimed]
        return await self._send_bulk("complete", items)

    async def claim_without_report(self) -> bool:
        """Claim without a report, or with a late one."""
        claimed = await self._claim(2)
        self._held += claimed
        return bool(claimed)

    async def start(self) -> bool:
        """Start an invocation by its id, without a claim."""
        invocation_id = choose(self.rng, self.known_ids.invocations)
        if invocation_id is None:
            return False
        response = await self.caller.send(
            ApiCall("start", "POST", f"/invocations/{invocation_id}/start", {}, {"id": invocation_id})
        )
        if response.is_success:
            self._held.append(HeldInvocation(invocation_id, response.text("attempt_token")))
        return True

    async def abandon_claim(self) -> bool:
        """Claim, and disconnect before the response."""
        call = self._claim_call(3)
        if call is None:
            return False
        await self.caller.abandon(call)
        return True

    async def _claim(self, limit: int) -> list[HeldInvocation]:
        call = self._claim_call(limit)
        if call is None:
            return []
        response = await self.caller.send(call)
        if response.should_retry and self.rng.random() < 0.7:
            # A repeated claim id returns the same attempts.
            response = await self.caller.send(call)
        return _held_invocations(response)

    def _claim_call(self, limit: int) -> ApiCall | None:
        service = choose(self.rng, self.known_ids.services)
        if service is None:
            return None
        claim = self.new_name("claim")
        body: dict[str, object] = {
            "max": self.rng.randint(1, limit),
            "wait_ms": self.rng.choice((0, 100, 400)),
            "claim_id": claim,
        }
        recorded: dict[str, object] = {"service_id": service, "claim_id": claim}
        return ApiCall("claim", "POST", f"/services/{service}/claim", body, recorded)

    # -- reports

    def _choose_status(self) -> str:
        return "succeeded" if self.rng.random() < 0.7 else "failed"

    async def _complete(self, held: HeldInvocation) -> bool:
        status = self._choose_status()
        body: dict[str, object] = {"status": status, "attempt_token": held.token, "retryable": self.rng.random() < 0.7}
        recorded: dict[str, object] = {"id": held.id, "attempt_token": held.token, "status": status}
        call = ApiCall("complete", "POST", f"/invocations/{held.id}/complete", body, recorded)
        await self.caller.send_until_known(call)
        return True

    async def report_late(self) -> bool:
        return bool(self._held) and await self._complete(self._held.popleft())

    async def release(self) -> bool:
        claimed = await self._claim(2)
        return await self._send_bulk("release", [{"id": held.id, "attempt_token": held.token} for held in claimed])

    async def release_late(self) -> bool:
        items = [{"id": held.id, "attempt_token": held.token} for held in self._held]
        return await self._send_bulk("release", items)

    async def heartbeat(self) -> bool:
        if not self._held:
            return False
        held = self._held[-1]
        body: dict[str, object] = {"attempt_token": held.token}
        call = ApiCall("heartbeat", "POST", f"/invocations/{held.id}/heartbeat", body, {"id": held.id})
        await self.caller.send(call)
        return True

    async def _send_bulk(self, op: str, items: list[dict[str, str]]) -> bool:
        """Send a bulk call. It is recorded as one line per item."""
        if items:
            await self.caller.send_bulk(ApiCall(op, "POST", f"/invocations/{op}", {"items": items}), items)
        return bool(items)


def _held_invocations(response: ApiResponse) -> list[HeldInvocation]:
    items = response.body.get("items") if response.is_success else None
    return [HeldInvocation(item["id"], item["attempt_token"]) for item in items] if isinstance(items, list) else []
