"""The SDK's types have exactly the fields and values of the server's types."""

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
from tools import generate_sdk_types as generate

WIRE_ALIASES = {"agent_session_id", "delegation_edge_id", "source_agent_id", "target_agent_id"}
"""Aliases on the wire, kept for compatibility. The SDK omits them."""


def test_generated_types_are_up_to_date() -> None:
    for name, text in generate.generate_files().items():
        assert (generate.SDK_DIR / name).read_text(encoding="utf-8") == text, "run `make sdk`"


@pytest.mark.parametrize(
    ("sdk_type", "view"),
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
def test_sdk_struct_has_the_fields_of_its_view(sdk_type: type[msgspec.Struct], view: type[msgspec.Struct]) -> None:
    assert set(sdk_type.__struct_encode_fields__) == set(view.__struct_encode_fields__) - WIRE_ALIASES


@pytest.mark.parametrize(
    ("options_type", "body"),
    [
        (options.SpawnOptions, sessions.SpawnBody),
        (options.ServiceOptions, services.RegisterServiceBody),
        (options.EnqueueOptions, invocations.EnqueueBody),
        (options.RetryPolicy, invocations.RetryPolicy),
        (options.DelegateOptions, delegations.DelegateBody),
    ],
)
def test_every_option_is_a_field_of_the_request_body(options_type: type, body: type[msgspec.Struct]) -> None:
    assert set(options_type.__annotations__) <= set(body.__struct_encode_fields__)


def test_states_equal_those_of_the_server() -> None:
    assert {*types.FINAL_STATUSES, "pending", "running"} == set(invocations.State)
    assert set(get_args(types.SessionStatus)) == set(sessions.State)
    assert set(get_args(types.InvocationStatus)) == set(invocations.State)
    assert set(get_args(types.DelegationStatus)) == set(delegations.EdgeState)
    assert set(get_args(types.Health)) == set(services.ServiceHealth)
    assert set(get_args(types.Delivery)) == set(services.DeliveryMode)


def test_bulk_limit_equals_that_of_the_server() -> None:
    assert types.BULK_MAX == invocations.BULK_MAX


def test_unknown_fields_are_ignored() -> None:
    decoded = msgspec.json.decode(
        b'{"revoked_edges":1,"affected_sessions":2,"terminated_agents":3,"added_later":4}', type=types.Revoked
    )
    assert decoded == types.Revoked(1, 2, 3)
