-- The columns of an invocation, in the order of `model.Invocation`.
-- columns: id, zone_id, service_id, application_id, source_session_id, target_session_id, idempotency_key, digest, method
-- columns: params_json, metadata_json, status, attempts, max_attempts, timeout_ms, retry_policy_json, result_json
-- columns: error_json, parked, available_at, deadline_at, lease_expires_at, attempt_token, begun_by, holder, claim_id
-- columns: cancel_requested_at, cancel_reason, invoker, trace, started_at, completed_at, created_at, updated_at
--
-- The columns that canceling needs, in the order of `model.OpenInvocation`.
-- columns open: id, zone_id, service_id, application_id, source_session_id, target_session_id, method, status, attempts

-- name: invocations_get
-- One statement reads all invocations that a batch names by id.
select columns(i)
from rows(:batch as b, zone_id text, id text)
join agent_invocations i on i.zone_id = b.zone_id and i.id = b.id;

-- name: invocations_get_with_context
-- `invocations_get` for commands that change rows, with `model.InvocationContext`: when the first of the invocation's
-- sessions expires (0 if one has ended, null if the invocation names none), whether a session is suspended, and whether
-- the service was unregistered after the invocation was created. The decider compares the expiry with the transaction's
-- time, which is read after this statement.
select columns(i), case
    when (i.source_session_id is not null and (x.id is null or x.status = 'terminated' or x.terminated_at is not null))
      or (i.target_session_id is not null and (y.id is null or y.status = 'terminated' or y.terminated_at is not null))
    then 0
    when x.id is null or y.expires_at < x.expires_at then y.expires_at
    else x.expires_at end as sessions_expire_at,
    case when x.status = 'suspended' or y.status = 'suspended' then 1 else 0 end as is_suspended,
    case when g.since is null then 0 else 1 end as service_gone
from rows(:batch as b, zone_id text, id text)
join agent_invocations i on i.zone_id = b.zone_id and i.id = b.id
left join agent_sessions x on x.zone_id = i.zone_id and x.id = i.source_session_id
left join agent_sessions y on y.zone_id = i.zone_id and y.id = i.target_session_id
left join invocation_backlogs g on g.zone_id = i.zone_id and g.kind = 'service' and g.owner_id = i.service_id
  and g.since >= i.created_at;

-- name: invocations_of_keys
-- The invocations that idempotency keys created. A key stays bound to its invocation until the row is deleted.
select columns(i)
from rows(:batch as b, zone_id text, service_id text, key text)
join agent_invocations i on i.idempotency_key = b.key and i.service_id = b.service_id and coalesce(i.zone_id, '') = b.zone_id;

-- name: invocations_of_claims
-- The invocations that repeated claims already hold. Only running invocations have a claim id. The decider ignores
-- rows that have the same claim id but a different service or holder.
select columns(i)
from rows(:batch as b, zone_id text, claim_id text)
join agent_invocations i on i.claim_id = b.claim_id and coalesce(i.zone_id, '') = b.zone_id;

-- name: invocations_due
-- The next due invocations of each service, in the order in which they became due, with `model.InvocationContext`. The
-- subquery uses the same index to find the `available_at` up to which there are enough rows. A few more rows may be
-- returned, because several can have the same `available_at`. `status` and `parked` are compared with columns of the
-- batch: with constants, the planner would search the rows of all services. `coalesce` around the zone keeps indexes
-- that start with the zone from being used.
select columns(i), case
    when (i.source_session_id is not null and (x.id is null or x.status = 'terminated' or x.terminated_at is not null))
      or (i.target_session_id is not null and (y.id is null or y.status = 'terminated' or y.terminated_at is not null))
    then 0
    when x.id is null or y.expires_at < x.expires_at then y.expires_at
    else x.expires_at end as sessions_expire_at,
    case when x.status = 'suspended' or y.status = 'suspended' then 1 else 0 end as is_suspended,
    case when g.since is null then 0 else 1 end as service_gone
from (
    select b.zone_id, b.service_id, b.state, b.parked, coalesce((
        select d.available_at
        from agent_invocations d
        where d.service_id = b.service_id and d.status = b.state and d.parked = b.parked
          and coalesce(d.zone_id, '') = b.zone_id and d.available_at <= (select now_ms())
        order by d.available_at, d.id
        limit 1 offset :limit
    ), now_ms()) as last_available_at
    from rows(:batch as b, zone_id text, service_id text, state text, parked bigint)
) w
join agent_invocations i on i.service_id = w.service_id and i.status = w.state and i.parked = w.parked
  and i.available_at <= w.last_available_at and coalesce(i.zone_id, '') = w.zone_id
left join agent_sessions x on x.zone_id = i.zone_id and x.id = i.source_session_id
left join agent_sessions y on y.zone_id = i.zone_id and y.id = i.target_session_id
left join invocation_backlogs g on g.zone_id = i.zone_id and g.kind = 'service' and g.owner_id = i.service_id
  and g.since >= i.created_at
order by i.available_at, i.id;

-- name: invocations_next_available
-- For long polls: when the next pending invocation of each service may start, and whether the service is registered.
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
-- Inserts the rows in their state after the batch: an invocation that the same batch claimed is inserted as running.
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
-- Updates a row only if its status and attempts are still as they were read. This is a safety check: the zone's lock
-- already excludes other writers.
update agent_invocations
set status = b.to_status, attempts = b.to_attempts, result_json = b.to_result, error_json = b.to_error,
    parked = b.to_parked, available_at = b.to_available_at, deadline_at = b.to_deadline_at,
    lease_expires_at = b.to_lease_expires_at, attempt_token = b.to_attempt_token, begun_by = b.to_begun_by,
    holder = b.to_holder, claim_id = b.to_claim_id, cancel_requested_at = b.to_cancel_requested_at,
    cancel_reason = b.to_cancel_reason, started_at = b.to_started_at, completed_at = b.to_completed_at,
    updated_at = b.to_updated_at
from rows(:batch as b, zone text, invocation text, from_status text, from_attempts bigint, to_status text,
    to_attempts bigint, to_result text, to_error text, to_parked bigint, to_available_at bigint, to_deadline_at bigint,
    to_lease_expires_at bigint, to_attempt_token text, to_begun_by text, to_holder text, to_claim_id text,
    to_cancel_requested_at bigint, to_cancel_reason text, to_started_at bigint, to_completed_at bigint,
    to_updated_at bigint)
where zone_id = b.zone and id = b.invocation and status = b.from_status and attempts = b.from_attempts
returning id;

-- name: invocations_of_sessions
-- planned: each time
-- Open invocations of sessions: up to `limit` by source session, and up to `limit` by target session. Each half uses
-- its own partial index of open invocations, because a session may have a million ended ones.
select columns(s as open) from (
    select columns(i as open)
    from rows(:batch as b, zone_id text, session_id text, parked bigint)
    join agent_invocations i on i.source_session_id = b.session_id and i.parked = b.parked
      and coalesce(i.zone_id, '') = b.zone_id
    where i.status in ('pending', 'running') and i.source_session_id is not null
    limit :limit
) s
union
select columns(t as open) from (
    select columns(j as open)
    from rows(:batch as b, zone_id text, session_id text, parked bigint)
    join agent_invocations j on j.target_session_id = b.session_id and j.parked = b.parked
      and coalesce(j.zone_id, '') = b.zone_id
    where j.status in ('pending', 'running') and j.target_session_id is not null
    limit :limit
) t;

-- name: invocations_of_services
-- Open invocations of unregistered services, up to `limit`. `since` excludes invocations that were created after the
-- service was registered again.
select columns(i as open)
from rows(:batch as b, zone_id text, service_id text, state text, since bigint)
join agent_invocations i on i.service_id = b.service_id and i.status = b.state and coalesce(i.zone_id, '') = b.zone_id
  and i.created_at <= b.since
limit :limit;

-- name: invocations_cancel
-- The same change as `rules.states.cancel`, for rows that were read only in part (`model.OpenInvocation`).
update agent_invocations
set status = 'canceled', parked = 0, lease_expires_at = null,
    cancel_requested_at = coalesce(cancel_requested_at, :now), cancel_reason = coalesce(cancel_reason, :reason),
    completed_at = :now, claim_id = null, updated_at = :now
from rows(:batch as b, zone text, invocation text, from_status text, from_attempts bigint)
where zone_id = b.zone and id = b.invocation and status = b.from_status and attempts = b.from_attempts
returning id;

-- name: invocations_set_parked
-- Parks or unparks invocations; their state does not change.
update agent_invocations
set parked = :parked
from rows(:batch as b, zone text, invocation text, from_status text, from_attempts bigint)
where zone_id = b.zone and id = b.invocation and status = b.from_status and attempts = b.from_attempts
  and parked <> :parked
returning id;

-- name: backlogs_upsert
-- Records owners that may have more open invocations than one transaction handles. A repeated insert updates `since`.
insert into invocation_backlogs (zone_id, kind, owner_id, since)
select b.zone_id, b.kind, b.owner_id, b.since
from rows(:batch as b, zone_id text, kind text, owner_id text, since bigint)
where true
on conflict (zone_id, kind, owner_id) do update set since = excluded.since;

-- name: backlogs_get
-- Those backlogs that a batch names and that still exist.
select g.zone_id, g.kind, g.owner_id, g.since
from rows(:batch as b, zone_id text, kind text, owner_id text)
join invocation_backlogs g on g.zone_id = b.zone_id and g.kind = b.kind and g.owner_id = b.owner_id;

-- name: backlogs_delete
-- For owners that have no open invocations left to handle.
delete from invocation_backlogs
where (zone_id, kind, owner_id) in (
    select b.zone_id, b.kind, b.owner_id from rows(:batch as b, zone_id text, kind text, owner_id text)
);

-- name: backlogs_oldest
-- For the sweep `invocation-settle`, across zones, oldest first.
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
-- `invocations_page` for one service and one state. The `case` expressions repeat those of an index. No other index has
-- them, so the planner can use only this index here, and it uses this index for no other statements.
select columns(i)
from agent_invocations i
where case when i.service_id is null then '' else i.service_id end = :service_id
  and case when i.status is null then '' else i.status end = :status
  and coalesce(i.zone_id, '') = :zone_id and i.id < :before
order by i.id desc
limit :limit;

-- name: invocations_overdue
-- For the deadline sweep, across zones: attempts whose deadline has passed, and attempts whose lease has expired, up to
-- `limit` of each. Each half uses its own index.
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
-- For the orphan sweep, across zones: the next open invocations after a position, in the order of the index by source
-- session, and whether that session has ended or was deleted.
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
-- For push delivery, across zones: push services with pending invocations, and when the next may start. Services that
-- cannot be served now are excluded here; otherwise they could use up the limit and hide other services. A row of
-- `excluded` with a null service excludes a whole zone.
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
    select 1 from rows(:excluded as f, zone_id text, service_id text)
    where f.zone_id = s.zone_id and (f.service_id is null or f.service_id = s.id))
order by 3
limit :limit;

-- name: services_without_invocations
-- For the retention of services, across zones: services that were unregistered before a time and have no invocation.
-- The `case` repeats the expression of the index on the service, so that each service is checked by an index lookup.
select s.zone_id, s.id
from agent_services s
where s.unregistered_at < :before and not exists (
    select 1
    from agent_invocations i
    where case when i.service_id is null then '' else i.service_id end = s.id and coalesce(i.zone_id, '') = s.zone_id)
order by s.unregistered_at
limit :limit;

-- name: invocations_delete_expired
-- Retention. Ids increase with time, so a row from `before_id` on was created after `before` and cannot have ended
-- earlier. The index by state is therefore read only up to `before_id`.
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
