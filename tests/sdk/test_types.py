"""What the SDK shows is what the server shows: no field that is not there, and none forgotten."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from quarterdeck.domain.delegations import model as delegations
from quarterdeck.domain.invocations import model as invocations
from quarterdeck.domain.services import model as services
from quarterdeck.domain.sessions import model as sessions
from quarterdeck.domain.zones import model as zones
from quarterdeck.engine.event_log import EventView
from quarterdeck.sdk import options, types

SECOND_NAMES = {"agent_session_id", "delegation_edge_id", "source_agent_id", "target_agent_id"}
"""On the wire for those who know the seed's other spelling."""


@pytest.mark.parametrize(
    ("shown", "served"),
    [
        (types.Zone, zones.ZoneView),
        (types.Quotas, zones.QuotasView),
        (types.Used, zones.QuotaUsage),
        (types.Session, sessions.SessionView),
        (types.Receipt, sessions.Receipt),
        (types.Left, sessions.RemainingSession),
        (types.Service, services.ServiceView),
        (types.Invocation, invocations.InvocationView),
        (types.Lease, invocations.LeaseView),
        (types.Item, invocations.ItemView),
        (types.Completion, invocations.CompleteInvocationItem),
        (types.Token, invocations.TokenItem),
        (types.Delegation, delegations.EdgeView),
        (types.Revoked, delegations.RevokedView),
        (types.Authority, delegations.Authority),
        (types.Event, EventView),
    ],
)
def test_a_struct_of_the_sdk_has_the_fields_of_its_view(
    shown: type[msgspec.Struct], served: type[msgspec.Struct]
) -> None:
    assert set(shown.__struct_encode_fields__) == set(served.__struct_encode_fields__) - SECOND_NAMES


@pytest.mark.parametrize(
    ("told", "body"),
    [
        (options.SpawnOptions, sessions.SpawnBody),
        (options.ServiceOptions, services.RegisterServiceBody),
        (options.EnqueueOptions, invocations.EnqueueBody),
        (options.RetryPolicy, invocations.RetryPolicy),
        (options.DelegateOptions, delegations.DelegateBody),
    ],
)
def test_every_option_is_one_the_server_knows(told: type, body: type[msgspec.Struct]) -> None:
    assert set(told.__annotations__) <= set(body.__struct_encode_fields__)


def test_the_states_are_those_of_the_rooms() -> None:
    assert {*types.FINAL_STATUSES, "pending", "running"} == set(invocations.State)
    assert set(get_args(types.SessionStatus)) == set(sessions.State)
    assert set(get_args(types.InvocationStatus)) == set(invocations.State)
    assert set(get_args(types.DelegationStatus)) == set(delegations.EdgeState)
    assert set(get_args(types.Health)) == set(services.ServiceHealth)
    assert set(get_args(types.Delivery)) == set(services.DeliveryMode)


def test_as_many_are_spoken_of_at_once_as_the_server_takes() -> None:
    assert types.BULK_MAX == invocations.BULK_MAX


def test_fields_that_a_later_server_adds_are_ignored() -> None:
    told = msgspec.json.decode(
        b'{"revoked_edges":1,"affected_sessions":2,"terminated_agents":3,"news":4}', type=types.Revoked
    )
    assert told == types.Revoked(1, 2, 3)
