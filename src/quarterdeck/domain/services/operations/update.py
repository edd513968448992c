"""Changes and heartbeats: load under the zones' locks, decide by `rules.changes`, write."""

from __future__ import annotations

from collections.abc import Sequence

from quarterdeck.core.errors import Problem
from quarterdeck.domain.services import rules
from quarterdeck.domain.services.model import Beat, Beaten, Change, Registered, Service
from quarterdeck.domain.services.operations import persist
from quarterdeck.domain.services.operations.load import Batch, Loaded, load
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules import Shelf, Told
from quarterdeck.domain.services.rules.update import changed
from quarterdeck.engine.lanes import Busy
from quarterdeck.engine.transaction import Tx


class Changer:
    """An object only because it must know where the server lets itself be sent."""

    def __init__(self, *, private_allowed: bool) -> None:
        self._private_allowed = private_allowed

    async def change(self, tx: Tx, asks: Sequence[Change]) -> list[Registered | Problem | Busy]:
        """Changes services, in order of arrival."""
        loaded = await load(tx, asks, locks=True)
        outcomes = [loaded.refusal(ask) or self._change(tx, loaded, ask) for ask in asks]
        await persist.write(tx, loaded.seen.shelf)
        return outcomes

    def _change(self, tx: Tx, loaded: Loaded, ask: Change) -> Registered | Problem:
        service = rules.reached(loaded.seen, (ask.zone_id, ask.service_id), ask.session_id)
        if isinstance(service, Problem):
            return service
        if problem := rules.may_act(ask.caller, service):
            return problem
        outcome = rules.change(ask, service, tx.now, private_allowed=self._private_allowed)
        if isinstance(outcome, Problem):
            return outcome
        if names := changed(service, outcome.service):
            loaded.seen.shelf.put(outcome.service)
            told = Told("change", outcome.service, service, names)
            tx.emit(persist.event(told, ask.caller.subject, ask.trace))
        return outcome


async def beat(tx: Tx, asks: Sequence[Beat]) -> list[Beaten | Problem | Busy]:
    """Notes that services were heard of."""
    loaded = await load(tx, asks, locks=True)
    outcomes = [loaded.refusal(ask) or _beat(tx, loaded, ask) for ask in asks]
    await _write(tx, loaded.seen.shelf)
    return outcomes


def _beat(tx: Tx, loaded: Loaded, ask: Beat) -> Beaten | Problem:
    services = _meant(loaded, ask)
    if isinstance(services, Problem):
        return services
    for service in services:
        if problem := rules.may_act(ask.caller, service):
            return problem
    return Beaten(tuple(_heard(tx, loaded.seen.shelf, ask, service) for service in services), tx.now)


def _meant(loaded: Loaded, ask: Beat) -> list[Service] | Problem:
    """The services a heartbeat is for: the one it names, or all of its session."""
    if ask.service_id is not None:
        service = rules.reached(loaded.seen, (ask.zone_id, ask.service_id), ask.session_id)
        return service if isinstance(service, Problem) else [service]
    assert ask.session_id is not None  # a heartbeat without a service came by the path of a session
    found = [
        rules.reached(loaded.seen, ref, ask.session_id) for ref in loaded.own.get((ask.zone_id, ask.session_id), ())
    ]
    services = [service for service in found if isinstance(service, Service)]
    return services or rules.none_of_session(loaded.seen, ask.zone_id, ask.session_id)


def _heard(tx: Tx, shelf: Shelf, ask: Beat, service: Service) -> Service:
    after = rules.beat(service, ask.said, tx.now)
    shelf.put(after)
    if after.health is not service.health:
        told = Told("change", after, service, ("health",))
        tx.emit(persist.event(told, ask.caller.subject, ask.trace))
    return after


async def _write(tx: Tx, shelf: Shelf) -> None:
    """Those that were only heard of take the short way."""
    only_heard: Batch = []
    others = Shelf()
    for before, after in shelf.moved():
        if after.updated_at == before.updated_at:
            only_heard.append((*after.ref, 0, after.active_invocations))
        else:
            others.take(before, after)
    if only_heard:
        await persist.moved(tx, Q.services_beat(batch=only_heard, now=tx.now), len(only_heard))
    await persist.write(tx, others)
