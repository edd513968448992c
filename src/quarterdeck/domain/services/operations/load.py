"""Loads the rows for a batch of commands about existing services."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from quarterdeck.core.ids import Ref
from quarterdeck.domain.access import operations as access
from quarterdeck.domain.access.model import AccessCommand
from quarterdeck.domain.services.model import Service
from quarterdeck.domain.services.queries import Q
from quarterdeck.domain.services.rules.states import BatchChanges, ServiceBatchInput
from quarterdeck.domain.sessions import operations as sessions
from quarterdeck.engine.transaction import Transaction
from quarterdeck.store.interface import Row, decode


class ServiceRequest(AccessCommand, Protocol):
    @property
    def service_id(self) -> str | None: ...
    @property
    def session_id(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class LoadedServices:
    batch: access.Batch
    input: ServiceBatchInput
    services_by_session: Mapping[Ref, Sequence[Ref]] = field(default_factory=dict)
    """For each session whose request names no service, all services of the session."""


async def load(tx: Transaction, requests: Sequence[ServiceRequest], *, lock_zones: bool) -> LoadedServices:
    path_sessions = {(request.zone_id, request.session_id) for request in requests if request.session_id is not None}
    service_refs = {(request.zone_id, request.service_id) for request in requests if request.service_id is not None}
    registrations = {
        (request.zone_id, request.service_id, request.session_id)
        for request in requests
        if request.service_id is not None and request.session_id is not None
    }
    listed_sessions = {
        (request.zone_id, request.session_id)
        for request in requests
        if request.service_id is None and request.session_id is not None
    }
    batch, [session_rows, service_rows, listed_rows, registration_rows] = await (
        access.lock if lock_zones else access.load
    )(
        tx,
        requests,
        sessions.load_statement(sorted(path_sessions)) if path_sessions else None,
        Q.services_get(batch=sorted(service_refs)) if service_refs else None,
        Q.services_of_sessions(batch=sorted(listed_sessions)) if listed_sessions else None,
        Q.registrations_get(batch=sorted(registrations)) if registrations else None,
    )
    listed_services = decode_services([row[1:] for row in listed_rows])
    batch_input = ServiceBatchInput(
        now=tx.now,
        sessions=sessions.decode_sessions(session_rows),
        changes=BatchChanges([*decode_services(service_rows), *listed_services]),
        registrations={
            *_decode_registrations(registration_rows),
            *_session_registrations(listed_rows, listed_services),
        },
    )
    return LoadedServices(batch, batch_input, _group_by_session(listed_rows, listed_services))


def decode_services(rows: Iterable[Row]) -> list[Service]:
    return decode([*rows], Service)


def _decode_registrations(rows: Iterable[Row]) -> set[tuple[str, str, str]]:
    return {(str(zone_id), str(service_id), str(session_id)) for zone_id, service_id, session_id in rows}


def _session_registrations(rows: Sequence[Row], services: Sequence[Service]) -> set[tuple[str, str, str]]:
    return {(*service.ref, str(row[0])) for row, service in zip(rows, services, strict=True)}


def _group_by_session(rows: Sequence[Row], services: Sequence[Service]) -> dict[Ref, list[Ref]]:
    grouped: dict[Ref, list[Ref]] = {}
    for row, service in zip(rows, services, strict=True):
        grouped.setdefault((service.zone_id, str(row[0])), []).append(service.ref)
    return grouped
