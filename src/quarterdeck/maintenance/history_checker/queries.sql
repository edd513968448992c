-- name: history_now
-- The database's clock, which decides whether something is overdue.
select now_ms();

-- name: history_sessions
-- All sessions of all zones. Columns in the order of `model.SessionRow`.
select s.zone_id, s.id, s.application_id, s.parent_id, s.root_id, s.depth, s.status, s.limits, s.spawned_at, s.expires_at,
       s.terminated_at
from agent_sessions s order by s.zone_id, s.id;

-- name: history_keys
-- The last session for each idempotency key of a spawn.
select k.zone_id, k.application_id, k.key, k.subject_id
from idempotency_keys k where k.operation = 'spawn' order by k.zone_id, k.application_id, k.key;

-- name: history_invocations
-- Columns in the order of `model.InvocationRow`.
select i.zone_id, i.id, i.service_id, i.idempotency_key, i.status, i.source_session_id, i.target_session_id, i.deadline_at,
       i.lease_expires_at, i.completed_at
from agent_invocations i order by i.zone_id, i.id;

-- name: history_edges
-- Columns in the order of `model.EdgeRow`.
select d.zone_id, d.id, d.source_session_id, d.target_session_id, d.status, d.expires_at, d.ended_at
from delegation_edges d order by d.zone_id, d.id;

-- name: history_services
-- All services, including unregistered ones.
select v.zone_id, v.id from agent_services v order by v.zone_id, v.id;

-- name: history_cascades
-- Columns in the order of `model.CascadeRow`. The fourth is the number of sessions that are left.
select c.zone_id, c.id, c.target_id, c.stamped - c.settled, c.finished_at from cascades c order by c.zone_id, c.id;

-- name: history_marked_sessions
-- The sessions that cascades have marked. Columns in the order of `model.MarkedSessionRow`.
select s.zone_id, s.cascade_id, s.id
from agent_sessions s where s.cascade_id is not null order by s.zone_id, s.id;

-- name: history_tasks
-- Columns in the order of `model.TaskRow`, with the state of the agent that holds the task or held it last.
select t.zone_id, t.id, t.status, t.attempt, t.final, t.waits, t.spreads, t.available_at, t.timeout_at, t.updated_at,
       t.on_dependency_failure, t.agent_id, a.status, p.last_seen_at + a.stale_threshold_seconds * 1000
from agent_tasks t
left join agents a on a.zone_id = t.zone_id and a.id = t.agent_id
left join agent_pulses p on p.zone_id = t.zone_id and p.agent_id = t.agent_id
order by t.zone_id, t.id;

-- name: history_dependencies
-- All dependencies, met or not.
select d.zone_id, d.task_id, d.depends_on from task_dependencies d order by d.zone_id, d.task_id, d.depends_on;
