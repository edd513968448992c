"""Clients that work: they claim and complete; and some of them give back, keep what they hold for too long, speak for
what is no longer theirs, or are gone before their answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from tests.support.plane.caller import Ask, Caller, Reply
from tests.support.plane.client import Client, Deed
from tests.support.plane.known import one_of


@dataclass(frozen=True)
class Held:
    id: str
    token: str


class Worker(Client):
    def __init__(self, caller: Caller) -> None:
        super().__init__(caller)
        self._held: deque[Held] = deque(maxlen=30)
        """What it was handed and has not reported: some of it long lost."""

    def deeds(self) -> Mapping[Deed, int]:
        return {
            self.work: 50,
            self.work_in_bulk: 15,
            self.dawdle: 15,
            self.report_late: 15,
            self.give_back: 5,
            self.give_back_late: 3,
            self.beat: 8,
            self.start: 6,
            self.vanish: 3,
        }

    # -- taking

    async def work(self) -> bool:
        taken = await self._claim(2)
        for held in taken:
            await self._complete(held)
        return bool(taken)

    async def work_in_bulk(self) -> bool:
        taken = await self._claim(8)
        status = self._verdict()
        items = [{"id": each.id, "attempt_token": each.token, "status": status} for each in taken]
        return await self._each("complete", items)

    async def dawdle(self) -> bool:
        """Takes and does not report, or not yet."""
        taken = await self._claim(2)
        self._held += taken
        return bool(taken)

    async def start(self) -> bool:
        """What it has heard of from others."""
        name = one_of(self.chance, self.known.invocations)
        if name is None:
            return False
        reply = await self.caller.ask(Ask("start", "POST", f"/invocations/{name}/start", {}, {"id": name}))
        if reply.ok:
            self._held.append(Held(name, reply.text("attempt_token")))
        return True

    async def vanish(self) -> bool:
        """Asks for work, and is gone before it comes."""
        ask = self._claiming(3)
        if ask is None:
            return False
        await self.caller.vanish_from(ask)
        return True

    async def _claim(self, most: int) -> list[Held]:
        ask = self._claiming(most)
        if ask is None:
            return []
        reply = await self.caller.ask(ask)
        if reply.to_be_repeated and self.chance.random() < 0.7:
            # The same claim again: whatever it had got, it gets.
            reply = await self.caller.ask(ask)
        return _leases(reply)

    def _claiming(self, most: int) -> Ask | None:
        service = one_of(self.chance, self.known.services)
        if service is None:
            return None
        claim = self.fresh("claim")
        body: dict[str, object] = {
            "max": self.chance.randint(1, most),
            "wait_ms": self.chance.choice((0, 100, 400)),
            "claim_id": claim,
        }
        asked: dict[str, object] = {"service_id": service, "claim_id": claim}
        return Ask("claim", "POST", f"/services/{service}/claim", body, asked)

    # -- reporting

    def _verdict(self) -> str:
        return "succeeded" if self.chance.random() < 0.7 else "failed"

    async def _complete(self, held: Held) -> bool:
        status = self._verdict()
        body: dict[str, object] = {
            "status": status,
            "attempt_token": held.token,
            "retryable": self.chance.random() < 0.7,
        }
        asked: dict[str, object] = {"id": held.id, "attempt_token": held.token, "status": status}
        ask = Ask("complete", "POST", f"/invocations/{held.id}/complete", body, asked)
        await self.caller.ask_until_known(ask)
        return True

    async def report_late(self) -> bool:
        return bool(self._held) and await self._complete(self._held.popleft())

    async def give_back(self) -> bool:
        taken = await self._claim(2)
        return await self._each("release", [{"id": each.id, "attempt_token": each.token} for each in taken])

    async def give_back_late(self) -> bool:
        held = [{"id": each.id, "attempt_token": each.token} for each in self._held]
        return await self._each("release", held)

    async def beat(self) -> bool:
        if not self._held:
            return False
        held = self._held[-1]
        body: dict[str, object] = {"attempt_token": held.token}
        ask = Ask("heartbeat", "POST", f"/invocations/{held.id}/heartbeat", body, {"id": held.id})
        await self.caller.ask(ask)
        return True

    async def _each(self, op: str, items: list[dict[str, str]]) -> bool:
        """A bulk call is written down as one line for each of its items."""
        if items:
            await self.caller.ask_each(Ask(op, "POST", f"/invocations/{op}", {"items": items}), items)
        return bool(items)


def _leases(reply: Reply) -> list[Held]:
    items = reply.body.get("items") if reply.ok else None
    return [Held(item["id"], item["attempt_token"]) for item in items] if isinstance(items, list) else []
