"""The metrics of a process: names, counts by event, and labels that do not grow with client input."""

from __future__ import annotations

import msgspec
import pytest

from quarterdeck.core.ids import new_id
from quarterdeck.engine.event_log import NewEvent
from quarterdeck.http.metrics import Metrics


def parse_metrics(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[:1] != "#"}


def event(kind: str, **data: object) -> NewEvent:
    return NewEvent(kind, "z", new_id(), "user-1", data=msgspec.json.encode(data).decode())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("subagent_invocations_total", "counter"),
        ("subagent_quota_denials_total", "counter"),
        ("subagent_cascade_terminations_total", "counter"),
        ("subagent_sweeper_actions_total", "counter"),
        ("subagent_sweeper_cross_tenant_reads_total", "counter"),
        ("subagent_invoke_duration_seconds", "histogram"),
    ],
)
def test_subagent_metrics_are_exposed_before_any_event(name: str, kind: str) -> None:
    assert f"# TYPE {name} {kind}" in Metrics().render().decode().splitlines()


def test_invocation_is_counted_once_by_its_final_event() -> None:
    metrics = Metrics()
    steps = ("created", "started", "retried", "released", "cancel_requested")
    metrics.record_events([event(f"invocation.{step}") for step in steps])
    ends = ("succeeded", "succeeded", "failed", "timed_out", "canceled", "dead")
    metrics.record_events([event(f"invocation.{outcome}") for outcome in ends])
    values = parse_metrics(metrics)
    for outcome in set(ends):
        assert values[f'subagent_invocations_total{{outcome="{outcome}"}}'] == ends.count(outcome)
    assert values["subagent_invoke_duration_seconds_count"] == len(ends)
    assert values['subagent_invoke_duration_seconds_bucket{le="30.0"}'] == len(ends)
    assert 0 <= values["subagent_invoke_duration_seconds_sum"] < 30


def test_custom_termination_reasons_share_one_label() -> None:
    metrics = Metrics()
    standard = ("requested", "ttl_expired", "orphaned", "delegation_revoked")
    metrics.record_events([event("session.terminate", reason=reason) for reason in standard])
    metrics.record_events([event("session.terminate", reason=f"because {n}") for n in range(50)])
    values = parse_metrics(metrics)
    labels = {name: n for name, n in values.items() if name.startswith("subagent_cascade_terminations_total")}
    expected = {**dict.fromkeys(standard, 1), "other": 50}
    assert labels == {f'subagent_cascade_terminations_total{{reason="{reason}"}}': n for reason, n in expected.items()}
