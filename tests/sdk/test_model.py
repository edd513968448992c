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
from quarterdeck.sdk import asks, model

SECOND_NAMES = {"agent_session_id", "delegation_edge_id", "source_agent_id", "target_agent_id"}
"""On the wire for those who know the seed's other spelling."""


@pytest.mark.parametrize(
    ("shown", "served"),
    [
        (model.Zone, zones.ZoneView),
        (model.Quotas, zones.QuotasView),
        (model.Used, zones.Used),
        (model.Session, sessions.SessionView),
        (model.Receipt, sessions.Receipt),
        (model.Left, sessions.Left),
        (model.Service, services.ServiceView),
        (model.Invocation, invocations.InvocationView),
        (model.Lease, invocations.LeaseView),
        (model.Item, invocations.ItemView),
        (model.Completion, invocations.CompleteItem),
        (model.Token, invocations.TokenItem),
        (model.Delegation, delegations.EdgeView),
        (model.Revoked, delegations.RevokedView),
        (model.Authority, delegations.Authority),
        (model.Event, EventView),
    ],
)
def test_a_struct_of_the_sdk_has_the_fields_of_its_view(
    shown: type[msgspec.Struct], served: type[msgspec.Struct]
) -> None:
    assert set(shown.__struct_encode_fields__) == set(served.__struct_encode_fields__) - SECOND_NAMES


@pytest.mark.parametrize(
    ("told", "body"),
    [
        (asks.SpawnOptions, sessions.SpawnBody),
        (asks.ServiceOptions, services.RegisterServiceBody),
        (asks.EnqueueOptions, invocations.EnqueueBody),
        (asks.RetryPolicy, invocations.RetryPolicy),
        (asks.DelegateOptions, delegations.DelegateBody),
    ],
)
def test_every_option_is_one_the_server_knows(told: type, body: type[msgspec.Struct]) -> None:
    assert set(told.__annotations__) <= set(body.__struct_encode_fields__)


def test_the_states_are_those_of_the_rooms() -> None:
    assert {*model.OVER, "pending", "running"} == set(invocations.State)
    assert set(get_args(model.SessionStatus)) == set(sessions.State)
    assert set(get_args(model.InvocationStatus)) == set(invocations.State)
    assert set(get_args(model.DelegationStatus)) == set(delegations.EdgeState)
    assert set(get_args(model.Health)) == set(services.Health)
    assert set(get_args(model.Delivery)) == set(services.Delivery)


def test_as_many_are_spoken_of_at_once_as_the_server_takes() -> None:
    assert model.BULK_MAX == invocations.BULK_MAX


def test_fields_that_a_later_server_adds_are_ignored() -> None:
    told = msgspec.json.decode(
        b'{"revoked_edges":1,"affected_sessions":2,"terminated_agents":3,"news":4}', type=model.Revoked
    )
    assert told == model.Revoked(1, 2, 3)
