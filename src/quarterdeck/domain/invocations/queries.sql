-- The columns of an invocation, in the order of `model.Invocation`.
-- columns: id, zone_id, service_id, application_id, source_session_id, target_session_id, idempotency_key, digest, method
-- columns: params_json, metadata_json, status, attempts, max_attempts, timeout_ms, retry_policy_json, result_json
-- columns: error_json, parked, available_at, deadline_at, lease_expires_at, attempt_token, begun_by, holder, claim_id
-- columns: cancel_requested_at, cancel_reason, invoker, trace, started_at, completed_at, created_at, updated_at
--
-- The columns that canceling needs, in the order of `model.OpenInvocation`.
-- columns open: id, zone_id, service_id, application_id, source_session_id, target_session_id, method, status, attempts

-- name: invocations_get
-- Batched: one statement for everything that a batch names by id.
select columns(i)
from rows(:batch as b, zone_id text, id text)
join agent_invocations i on i.zone_id = b.zone_id and i.id = b.id;

-- name: invocations_get_with_context
-- `invocations_get` for commands that change rows, with `model.InvocationContext`: when its first session expires
-- (null: it has none), whether one is suspended, and whether its service was unregistered since. Times are compared
-- later, with the transaction's time, which is read after this statement.
select columns(i), case
    when (i.source_session_id is not null and (x.id is null or x.status = 'terminated' or x.terminated_at is not null))
      or (i.target_session_id is not null and (y.id is null or y.status = 'terminated' or y.terminated_at is not null))
    then 0
    when x.id is null or y.expires_at < x.expires_at then y.expires_at
    else x.expires_at end as lives_until,
    case when x.status = 'suspended' or y.status = 'suspended' then 1 else 0 end as sleeps,
    case when g.since is null then 0 else 1 end as dropped
from rows(:batch as b, zone_id text, id text)
join agent_invocations i on i.zone_id = b.zone_id and i.id = b.id
left join agent_sessions x on x.zone_id = i.zone_id and x.id = i.source_session_id
left join agent_sessions y on y.zone_id = i.zone_id and y.id = i.target_session_id
left join invocation_backlogs g on g.zone_id = i.zone_id and g.kind = 'service' and g.owner_id = i.service_id
  and g.since >= i.created_at;

-- name: invocations_of_keys
-- The invocations that idempotency keys created. A key is bound to its invocation as long as the row is stored.
select columns(i)
from rows(:batch as b, zone_id text, service_id text, key text)
join agent_invocations i on i.idempotency_key = b.key and i.service_id = b.service_id and coalesce(i.zone_id, '') = b.zone_id;

-- name: invocations_of_claims
-- What repeated claims hold: the same id returns the same leases. Only running invocations have a claim id. Rows of
-- another service with the same claim id are filtered by the caller.
select columns(i)
from rows(:batch as b, zone_id text, claim_id text)
join agent_invocations i on i.claim_id = b.claim_id and coalesce(i.zone_id, '') = b.zone_id;

-- name: invocations_due
-- The next invocations of each service, in the order in which they became due, with `model.InvocationContext`.
-- First finds, by the same index, the time up to which there are enough; a few more may have the same time. State and
-- `parked` come from the batch: as constants, the planner would search for them in all services. The zone is inside
-- `coalesce` so that no index that starts with it is used.
select columns(i), case
    when (i.source_session_id is not null and (x.id is null or x.status = 'terminated' or x.terminated_at is not null))
      or (i.target_session_id is not null and (y.id is null or y.status = 'terminated' or y.terminated_at is not null))
    then 0
    when x.id is null or y.expires_at < x.expires_at then y.expires_at
    else x.expires_at end as lives_until,
    case when x.status = 'suspended' or y.status = 'suspended' then 1 else 0 end as sleeps,
    case when g.since is null then 0 else 1 end as dropped
from (
    select b.zone_id, b.service_id, b.state, b.parked, coalesce((
        select d.available_at
        from agent_invocations d
        where d.service_id = b.service_id and d.status = b.state and d.parked = b.parked
          and coalesce(d.zone_id, '') = b.zone_id and d.available_at <= (select now_ms())
        order by d.available_at, d.id
        limit 1 offset :most
    ), now_ms()) as enough_at
    from rows(:batch as b, zone_id text, service_id text, state text, parked bigint)
) w
join agent_invocations i on i.service_id = w.service_id and i.status = w.state and i.parked = w.parked
  and i.available_at <= w.enough_at and coalesce(i.zone_id, '') = w.zone_id
left join agent_sessions x on x.zone_id = i.zone_id and x.id = i.source_session_id
left join agent_sessions y on y.zone_id = i.zone_id and y.id = i.target_session_id
left join invocation_backlogs g on g.zone_id = i.zone_id and g.kind = 'service' and g.owner_id = i.service_id
  and g.since >= i.created_at
order by i.available_at, i.id;

-- name: invocations_next_available
-- For long polls: when the next invocation of each service may start, and whether the service is registered.
select b.zone_id, b.service_id, (
    select min(i.available_at)
    from agent_invocations i
    where i.service_id = b.service_id and coalesce(i.zone_id, '') = b.zone_id
      and i.status = 'pending' and i.parked = 0
), (
    select 1 from agent_services s where s.zone_id = b.zone_id and s.id = b.service_id and s.unregistered_at is null
), now_ms()
from rows(:batch as b, zone_id text, service_id text);

-- name: invocations_insert
-- Rows as they are after the batch: an invocation that was claimed in the same batch is inserted as running.
insert into agent_invocations (id, zone_id, service_id, application_id, source_session_id, target_session_id,
    idempotency_key, digest, method, params_json, metadata_json, status, attempts, max_attempts, timeout_ms,
    retry_policy_json, result_json, error_json, parked, available_at, deadline_at, lease_expires_at, attempt_token,
    begun_by, holder, claim_id, cancel_requested_at, cancel_reason, invoker, trace, started_at, completed_at,
    created_at, updated_at)
select columns(b)
from rows(:batch as b, id text, zone_id text, service_id text, application_id text, source_session_id text,
    target_session_id text, idempotency_key text, digest text, method text, params_json text, metadata_json text,
    status text, attempts bigint, max_attempts bigint, timeout_ms bigint, retry_policy_json text, result_json text,
    error_json text, parked bigint, available_at bigint, deadline_at bigint, lease_expires_at bigint,
    attempt_token text, begun_by text, holder text, claim_id text, cancel_requested_at bigint, cancel_reason text,
    invoker text, trace text, started_at bigint, completed_at bigint, created_at bigint, updated_at bigint);

-- name: invocations_update
-- Guarded by state and attempts as read, although the zone's lock already excludes other writers.
update agent_invocations
set status = b.to_status, attempts = b.to_attempts, result_json = b.new_result, error_json = b.new_error,
    parked = b.to_parked, available_at = b.at, deadline_at = b.deadline, lease_expires_at = b.lease,
    attempt_token = b.token, begun_by = b.how, holder = b.who, claim_id = b.claim,
    cancel_requested_at = b.cancel_at, cancel_reason = b.cancel_why, started_at = b.began, completed_at = b.finished,
    updated_at = b.moved
from rows(:batch as b, zone text, name text, was text, were bigint, to_status text, to_attempts bigint,
    new_result text, new_error text, to_parked bigint, at bigint, deadline bigint, lease bigint, token text, how text,
    who text, claim text, cancel_at bigint, cancel_why text, began bigint, finished bigint, moved bigint)
where zone_id = b.zone and id = b.name and status = b.was and attempts = b.were
returning id;

-- name: invocations_of_sessions
-- planned: each time
-- Open invocations of sessions, as many as one transaction handles. Two halves, each by its own partial index without
-- ended invocations: a session may have a million of those.
select columns(s as open) from (
    select columns(i as open)
    from rows(:batch as b, zone_id text, session_id text, parked bigint)
    join agent_invocations i on i.source_session_id = b.session_id and i.parked = b.parked
      and coalesce(i.zone_id, '') = b.zone_id
    where i.status in ('pending', 'running') and i.source_session_id is not null
    limit :most
) s
union
select columns(t as open) from (
    select columns(j as open)
    from rows(:batch as b, zone_id text, session_id text, parked bigint)
    join agent_invocations j on j.target_session_id = b.session_id and j.parked = b.parked
      and coalesce(j.zone_id, '') = b.zone_id
    where j.status in ('pending', 'running') and j.target_session_id is not null
    limit :most
) t;

-- name: invocations_of_services
-- Open invocations of unregistered services, as many as one transaction handles. `since` excludes invocations that were
-- created after the service was registered again.
select columns(i as open)
from rows(:batch as b, zone_id text, service_id text, state text, since bigint)
join agent_invocations i on i.service_id = b.service_id and i.status = b.state and coalesce(i.zone_id, '') = b.zone_id
  and i.created_at <= b.since
limit :most;

-- name: invocations_cancel
-- The same change as `rules.states.cancel`, for many rows of which only some columns were read.
update agent_invocations
set status = 'canceled', parked = 0, lease_expires_at = null,
    cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason),
    completed_at = :now, claim_id = null, updated_at = :now
from rows(:batch as b, zone text, name text, was text, were bigint)
where zone_id = b.zone and id = b.name and status = b.was and attempts = b.were
returning id;

-- name: invocations_set_parked
-- Parks or unparks invocations; their state does not change.
update agent_invocations
set parked = :parked
from rows(:batch as b, zone text, name text, was text, were bigint)
where zone_id = b.zone and id = b.name and status = b.was and attempts = b.were and parked <> :parked
returning id;

-- name: backlogs_upsert
-- Owners with more invocations than one transaction handles. A repeated insert updates `since`.
insert into invocation_backlogs (zone_id, kind, owner_id, since)
select b.zone_id, b.kind, b.owner_id, b.since
from rows(:batch as b, zone_id text, kind text, owner_id text, since bigint)
where true
on conflict (zone_id, kind, owner_id) do update set since = excluded.since;

-- name: backlogs_get
-- The backlogs of a batch that still exist.
select g.zone_id, g.kind, g.owner_id, g.since
from rows(:batch as b, zone_id text, kind text, owner_id text)
join invocation_backlogs g on g.zone_id = b.zone_id and g.kind = b.kind and g.owner_id = b.owner_id;

-- name: backlogs_delete
-- All invocations of these owners have been handled.
delete from invocation_backlogs
where (zone_id, kind, owner_id) in (
    select b.zone_id, b.kind, b.owner_id from rows(:batch as b, zone_id text, kind text, owner_id text)
);

-- name: backlogs_oldest
-- For the sweep, across zones, oldest first.
select g.zone_id, g.kind, g.owner_id, g.since
from invocation_backlogs g
order by g.since
limit :limit;

-- name: invocations_page
-- planned: each time
-- Newest first: ids increase with time. A null filter matches everything.
select columns(i)
from agent_invocations i
where i.zone_id = :zone_id
  and (cast(:before as text) is null or i.id < cast(:before as text))
  and (cast(:status as text) is null or i.status = cast(:status as text))
  and (cast(:service_id as text) is null or i.service_id = cast(:service_id as text))
  and (cast(:source_session_id as text) is null or i.source_session_id = cast(:source_session_id as text))
  and (cast(:target_session_id as text) is null or i.target_session_id = cast(:target_session_id as text))
order by i.id desc
limit :limit;

-- name: invocations_page_of_service
-- `invocations_page` for one service and one state. The index expressions use `case`, so that only this statement uses
-- this index, and no other index is used for it.
select columns(i)
from agent_invocations i
where case when i.service_id is null then '' else i.service_id end = :service_id
  and case when i.status is null then '' else i.status end = :status
  and coalesce(i.zone_id, '') = :zone_id and i.id < :before
order by i.id desc
limit :limit;

-- name: invocations_overdue
-- For the sweep, across zones: attempts whose deadline or lease has passed. Two halves, each by its own index.
select zone_id, id from (
    select i.zone_id, i.id from agent_invocations i
    where i.status = 'running' and i.deadline_at <= (select now_ms())
    order by i.deadline_at limit :limit
) d
union
select zone_id, id from (
    select i.zone_id, i.id from agent_invocations i
    where i.status = 'running' and i.lease_expires_at <= (select now_ms())
    order by i.lease_expires_at limit :limit
) l;

-- name: invocations_slice_by_source
-- For the orphan sweep, across zones: a slice of the open invocations of source sessions, from a position on, in index
-- order, and whether the session has ended or is deleted.
select i.source_session_id, i.parked, i.id, i.zone_id, case
    when s.id is null or s.status = 'terminated' or s.terminated_at is not null or s.expires_at <= (select now_ms())
    then 1 else 0 end
from agent_invocations i
left join agent_sessions s on s.zone_id = i.zone_id and s.id = i.source_session_id
where (i.source_session_id, i.parked, i.id) > (:session_id, :parked, :id)
  and i.status in ('pending', 'running') and i.source_session_id is not null
order by i.source_session_id, i.parked, i.id
limit :limit;

-- name: invocations_slice_by_target
-- `invocations_slice_by_source` for target sessions.
select i.target_session_id, i.parked, i.id, i.zone_id, case
    when s.id is null or s.status = 'terminated' or s.terminated_at is not null or s.expires_at <= (select now_ms())
    then 1 else 0 end
from agent_invocations i
left join agent_sessions s on s.zone_id = i.zone_id and s.id = i.target_session_id
where (i.target_session_id, i.parked, i.id) > (:session_id, :parked, :id)
  and i.status in ('pending', 'running') and i.target_session_id is not null
order by i.target_session_id, i.parked, i.id
limit :limit;

-- name: invocations_to_push
-- For push delivery, across zones: push services with pending invocations, and when the next may start. Services
-- without free slots are excluded here; otherwise the oldest work would fill the limit and hide the others. A row of
-- `full` with a null service excludes a whole zone.
select s.zone_id, s.id, (
    select min(i.available_at)
    from agent_invocations i
    where i.service_id = s.id and coalesce(i.zone_id, '') = s.zone_id
      and i.status = 'pending' and i.parked = 0
) as next_at, now_ms()
from agent_services s
where s.delivery = 'push' and s.unregistered_at is null
  and exists (
    select 1 from agent_invocations i
    where i.service_id = s.id and coalesce(i.zone_id, '') = s.zone_id
      and i.status = 'pending' and i.parked = 0)
  and not exists (
    select 1 from rows(:full as f, zone_id text, service_id text)
    where f.zone_id = s.zone_id and (f.service_id is null or f.service_id = s.id))
order by 3
limit :limit;

-- name: services_without_invocations
-- For the retention of services, across zones: services that were unregistered before a time and have no invocation.
-- The `case` selects the index by service for the check of each service.
select s.zone_id, s.id
from agent_services s
where s.unregistered_at < :before and not exists (
    select 1
    from agent_invocations i
    where case when i.service_id is null then '' else i.service_id end = s.id and coalesce(i.zone_id, '') = s.zone_id)
order by s.unregistered_at
limit :limit;

-- name: invocations_delete_expired
-- Retention. Ids increase with time, so `before_id` limits the index by state to rows that are old enough.
delete from agent_invocations
where (zone_id, id) in (
    select i.zone_id, i.id
    from zones z
    join agent_invocations i on i.zone_id = z.id and i.id < :before_id
      and i.status in ('succeeded', 'failed', 'timed_out', 'canceled', 'dead')
    where i.completed_at < :before
    limit :limit
)
returning id;
