"""Agents and tasks, with members, dependencies, log lines of agents, costs, budgets and webhooks.

A ready task is found by its class (its type and required capabilities) in the order of its `turn`: the rank that the
zone's strategy gives it, so that one index serves every strategy. `waits` says what a task needs besides an agent:
0 nothing, 1 a time (`available_at`), 2 other tasks (`unmet` of them).

Heartbeats must be cheap: `agent_pulses` is a narrow row without an index on a column that changes. Agents that may be
stale are found by `agents.look_at`, which the check moves forward, not the heartbeat.

Revision ID: 0007
"""

from __future__ import annotations

from quarterdeck.store.migrations import on_postgresql, run
from quarterdeck.store.migrations.row_security import grant, secure

revision = "0007"
down_revision = "0006"

SCRIPT = """
create table members (
    zone_id text not null,
    subject text not null,
    role text not null,
    added_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, subject)
) {clustered};

create table agents (
    zone_id text not null,
    id text not null,
    name text not null,
    model text,
    description text,
    capabilities text not null,
    max_concurrent_tasks bigint not null,
    heartbeat_interval_seconds bigint not null,
    stale_threshold_seconds bigint not null,
    coordinator_enabled smallint not null,
    launcher text,
    labels text not null,
    pool text,
    status text not null,
    status_reason text,
    draining smallint not null,
    look_at bigint,
    terminated_at bigint,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, id)
);

create index agents_to_look_at on agents (look_at) where look_at is not null;

create index agents_to_launch on agents (launcher, zone_id, id) where launcher is not null;

create index agents_in_error on agents (status, zone_id, id) where status = 'ERROR';

create table agent_capabilities (
    zone_id text not null,
    capability text not null,
    agent_id text not null,
    primary key (zone_id, capability, agent_id)
) {clustered};

create table agent_pulses (
    zone_id text not null,
    agent_id text not null,
    status text not null,
    held bigint not null,
    current_task_id text,
    progress_percent bigint,
    current_step text,
    memory_mb bigint,
    cpu_percent bigint,
    last_seen_at bigint not null,
    kept_at bigint not null,
    primary key (zone_id, agent_id)
) {clustered};

create table agent_heartbeats (
    id text not null primary key,
    zone_id text not null,
    agent_id text not null,
    status text not null,
    current_task_id text,
    progress_percent bigint,
    memory_mb bigint,
    cpu_percent bigint,
    last_seen_at bigint not null,
    next_expected_at bigint not null,
    metadata_json text not null
);

create index agent_heartbeats_of_agent on agent_heartbeats (agent_id, zone_id, id);

create table task_classes (
    zone_id text not null,
    id text not null,
    task_type text not null,
    capabilities text not null,
    created_at bigint not null,
    primary key (zone_id, id)
) {clustered};

create table agent_tasks (
    id text not null,
    zone_id text not null,
    title text not null,
    description text,
    task_type text not null,
    status text not null,
    priority bigint not null,
    agent_id text,
    session_key text,
    progress_percent bigint not null,
    current_step text,
    estimated_duration_minutes bigint,
    estimated_completion_at bigint,
    retry_count bigint not null,
    max_retries bigint not null,
    retry_backoff_seconds bigint not null,
    last_error text,
    on_dependency_failure text not null,
    input_context text not null,
    output_result text,
    summary text,
    checkpoint_data text not null,
    metadata_json text not null,
    tags text not null,
    required_capabilities text not null,
    class_id text not null,
    turn bigint not null,
    ranked_by text not null,
    waits bigint not null,
    depends bigint not null,
    unmet bigint not null,
    available_at bigint not null,
    timeout_seconds bigint,
    timeout_at bigint,
    attempt bigint not null,
    attempt_token text,
    claim_id text,
    final smallint not null,
    reason text,
    spreads smallint not null,
    warned_at bigint,
    progress_at bigint,
    overdue_at bigint,
    usd_micros bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    created_by text not null,
    application_id text not null,
    trace text,
    created_at bigint not null,
    updated_at bigint not null,
    assigned_at bigint,
    started_at bigint,
    completed_at bigint,
    failed_at bigint,
    primary key (zone_id, id)
);

create index agent_tasks_ready on agent_tasks (zone_id, class_id, turn, id) where status = 'PENDING' and waits = 0;

create index agent_tasks_later on agent_tasks (available_at) where waits = 1;

create index agent_tasks_timed on agent_tasks (timeout_at) where timeout_at is not null;

create index agent_tasks_overdue on agent_tasks (overdue_at) where overdue_at is not null;

create index agent_tasks_blocked on agent_tasks (waits, zone_id, id) where waits = 2;

create index agent_tasks_spreading on agent_tasks (spreads, zone_id, id) where spreads = 1;

create index agent_tasks_by_status on agent_tasks (zone_id, status, id);

create index agent_tasks_of_agent on agent_tasks (agent_id, status, zone_id, id) where agent_id is not null;

create table task_dependencies (
    zone_id text not null,
    task_id text not null,
    depends_on text not null,
    met smallint not null,
    primary key (zone_id, task_id, depends_on)
) {clustered};

create index task_dependencies_blocking on task_dependencies (depends_on, zone_id, met, task_id);

create table task_tags (
    zone_id text not null,
    tag text not null,
    task_id text not null,
    primary key (zone_id, tag, task_id)
) {clustered};

create table task_log_lines (
    zone_id text not null,
    task_id text not null,
    id text not null,
    number bigint not null,
    agent_id text,
    attempt bigint not null,
    level text not null,
    event text not null,
    message text,
    details text not null,
    session_key text,
    stack_trace text,
    size bigint not null,
    created_at bigint not null,
    primary key (zone_id, task_id, id)
);

create unique index task_log_lines_in_order on task_log_lines (task_id, zone_id, number);

create table task_log_counts (
    zone_id text not null,
    task_id text not null,
    lines bigint not null,
    primary key (zone_id, task_id)
) {clustered};

create table task_shares (
    zone_id text not null,
    creator text not null,
    turn bigint not null,
    primary key (zone_id, creator)
) {clustered};

create table task_strategies (
    zone_id text not null primary key,
    strategy text not null,
    ranked_to text,
    updated_at bigint not null
);

create index task_strategies_unsettled on task_strategies (ranked_to, zone_id) where ranked_to is not null;

create table task_costs (
    zone_id text not null,
    task_id text not null,
    agent_id text not null,
    model text not null,
    day bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    usd_micros bigint not null,
    primary key (zone_id, task_id, agent_id, model, day)
) {clustered};

create table cost_days (
    zone_id text not null,
    day bigint not null,
    task_type text not null,
    agent_id text not null,
    model text not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    usd_micros bigint not null,
    primary key (zone_id, day, task_type, agent_id, model)
) {clustered};

create table budgets (
    zone_id text not null,
    scope text not null,
    scope_key text not null,
    period text not null,
    usd_micros bigint,
    tokens bigint,
    began_at bigint not null,
    ends_at bigint,
    spent_usd_micros bigint not null,
    spent_tokens bigint not null,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (zone_id, scope, scope_key, period)
) {clustered};

create index budgets_spent on budgets (ends_at) where spent_usd_micros >= usd_micros or spent_tokens >= tokens;

create table webhook_endpoints (
    zone_id text not null,
    id text not null,
    url text not null,
    description text,
    types text not null,
    secret_number bigint not null,
    rotated_at bigint,
    enabled smallint not null,
    disabled_reason text,
    position bigint not null,
    failing_since bigint,
    created_by text not null,
    created_at bigint not null,
    updated_at bigint not null,
    removed_at bigint,
    primary key (zone_id, id)
);

create unique index webhook_endpoints_by_id on webhook_endpoints (id);

create index webhook_endpoints_told on webhook_endpoints (enabled, zone_id) where enabled = 1;

create index webhook_endpoints_removed on webhook_endpoints (removed_at) where removed_at is not null;

create table webhook_deliveries (
    endpoint_id text not null,
    zone_id text not null,
    id text not null,
    pos bigint not null,
    type text not null,
    body text not null,
    trace text,
    status text not null,
    attempts bigint not null,
    queue text,
    next_at bigint,
    answer_status bigint,
    error text,
    created_at bigint not null,
    updated_at bigint not null,
    delivered_at bigint,
    primary key (endpoint_id, zone_id, id)
);

create index webhook_deliveries_due on webhook_deliveries (queue, next_at) where queue is not null;

create index webhook_deliveries_over on webhook_deliveries (id) where queue is null;

create index webhook_deliveries_by_status on webhook_deliveries (status, endpoint_id, zone_id, id);

create table secret_checks (
    key_id text not null primary key,
    sealed text not null,
    created_at bigint not null
);
"""


def upgrade() -> None:
    run(SCRIPT)
    if on_postgresql():
        # Free space in each page for the next version of a row: frequent updates stay on the page.
        run("alter table agent_pulses set (fillfactor = 50)")
        # A claimed task leaves a dead index entry exactly where the next claim starts to search. With the default of
        # 20% of a large table, vacuum would let them pile up for hours.
        run("alter table agent_tasks set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000)")
    everything = "select, insert, update, delete"
    for table in ("members", "agents", "agent_capabilities", "agent_pulses", "agent_heartbeats"):
        secure(table, server=everything, sweep="select, delete" if table == "agent_heartbeats" else "select")
    for table in ("agent_tasks", "task_classes", "task_dependencies", "task_tags", "task_shares", "task_strategies"):
        secure(table, server=everything, sweep="select, delete")
    secure("task_log_lines", server="select, insert", sweep="select, delete")
    secure("task_log_counts", server="select, insert, update", sweep="select, delete")
    secure("cost_days", server="select, insert, update")
    secure("task_costs", server="select, insert, update", sweep="select, delete")
    secure("budgets", server=everything, sweep="select, delete")
    secure("webhook_endpoints", server="select, insert, update", sweep="select, delete")
    secure("webhook_deliveries", server="select, insert, update", sweep="select, insert, delete")
    grant("secret_checks", server="select, insert, update, delete")
