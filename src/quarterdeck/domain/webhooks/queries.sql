-- The columns of an endpoint, in the order of `model.Endpoint`.
-- columns: zone_id, id, url, description, types, secret_number, rotated_at, enabled, disabled_reason, position
-- columns: failing_since, created_by, created_at, updated_at, removed_at
--
-- The columns of a delivery, in the order of `model.Delivery`.
-- columns delivery: endpoint_id, zone_id, id, pos, type, body, trace, status, attempts, queue, next_at, answer_status
-- columns delivery: error, created_at, updated_at, delivered_at

-- name: webhooks_of_zones
-- All endpoints of a zone that are not removed. There are few of them, and counting them would read them anyway.
-- (Here and below, `coalesce` around a column and the absence of `order by` make sure that even a plan that was cached
-- while the table was nearly empty uses the index by zone.)
select columns(w)
from rows(:batch as b, zone_id text)
join webhook_endpoints w on w.zone_id = b.zone_id and coalesce(w.removed_at, -1) < 0;

-- name: webhooks_get
-- Endpoints by id, including disabled and removed ones.
select columns(w)
from rows(:batch as b, zone_id text, id text)
join webhook_endpoints w on w.zone_id = b.zone_id and w.id = b.id;

-- name: webhooks_insert
-- Runs under the zone's lock. The endpoint gets only events that are committed later: the head of the log is read here,
-- and later commits get higher positions.
insert into webhook_endpoints (zone_id, id, url, description, types, secret_number, rotated_at, enabled, disabled_reason,
    position, failing_since, created_by, created_at, updated_at, removed_at)
select b.zone_id, b.id, b.url, b.description, b.types, b.secret_number, b.rotated_at, b.enabled, b.disabled_reason,
    h.pos, b.failing_since, b.created_by, b.created_at, b.updated_at, b.removed_at
from rows(:batch as b, zone_id text, id text, url text, description text, types text, secret_number bigint,
    rotated_at bigint, enabled smallint, disabled_reason text, position bigint, failing_since bigint, created_by text,
    created_at bigint, updated_at bigint, removed_at bigint)
join log_head h on h.id = 1;

-- name: webhooks_update
-- Runs under the zone's lock. Does not set `failing_since`, which reports of attempts write without that lock.
update webhook_endpoints
set url = b.new_url, description = b.new_description, types = b.new_types, secret_number = b.new_number,
    rotated_at = b.new_rotated_at, enabled = b.new_enabled, disabled_reason = b.new_reason, updated_at = b.new_updated_at,
    removed_at = b.new_removed_at
from rows(:batch as b, zone text, endpoint text, new_url text, new_description text, new_types text, new_number bigint,
    new_rotated_at bigint, new_enabled smallint, new_reason text, new_updated_at bigint, new_removed_at bigint)
where zone_id = b.zone and id = b.endpoint and coalesce(removed_at, -1) < 0
returning zone_id, id;

-- name: webhooks_reset_position
-- For endpoints that are enabled again: they get only later events, and `failing_since` is cleared.
update webhook_endpoints
set position = (select h.pos from log_head h where h.id = 1), failing_since = null
from rows(:batch as b, zone text, endpoint text)
where zone_id = b.zone and id = b.endpoint;

-- name: webhooks_clear_failing
-- After a successful delivery, or when the URL has changed.
update webhook_endpoints
set failing_since = null
from rows(:batch as b, zone text, endpoint text)
where zone_id = b.zone and id = b.endpoint and coalesce(failing_since, -1) >= 0;

-- name: webhooks_mark_failing
-- Sets the time of the first failure since the last success; later failures change nothing.
update webhook_endpoints
set failing_since = :now
from rows(:batch as b, zone text, endpoint text)
where zone_id = b.zone and id = b.endpoint and coalesce(failing_since, -1) < 0;

-- name: webhooks_delete_expired
-- Retention, across zones: endpoints that were removed long ago and have no deliveries left.
delete from webhook_endpoints
where (zone_id, id) in (
    select w.zone_id, w.id
    from webhook_endpoints w
    where w.removed_at < :before
      and not exists (select 1 from webhook_deliveries d where d.endpoint_id = w.id and d.zone_id = w.zone_id)
    order by w.removed_at
    limit :limit
)
returning id;

-- name: webhook_events_page
-- For the sink, across zones: the events of zones with enabled endpoints, after a position and up to `upto`. The head
-- of the log and whether any endpoint is enabled are read in the same statement, because they must be consistent: an
-- endpoint that is not visible here gets no event up to this head.
select h.floor, h.pos as head,
    (select count(*) from (select 1 from webhook_endpoints w where w.enabled = 1 limit 1) one) as has_endpoints,
    e.pos, e.id, e.zone_id, e.type, e.subject, e.actor, e.from_state, e.to_state, e.data, e.trace, e.at
from log_head h
left join (
  select *
  from events v
  where v.pos > :after and v.pos <= :upto
    and (v.type like 'task.%' or v.type like 'agent.%' or v.type = 'webhook.disabled')
    and exists (select 1 from webhook_endpoints w where w.enabled = 1 and w.zone_id = v.zone_id)
  order by v.pos
  limit :limit
) e on true
where h.id = 1
order by e.pos;

-- name: webhooks_any_enabled
-- Whether any endpoint of any zone is enabled.
select 1 from webhook_endpoints w where w.enabled = 1 limit 1;

-- name: webhooks_enabled_in_zones
-- planned: each time
-- The enabled endpoints of these zones. Read after the events, so that endpoints committed before an event are seen.
select columns(w)
from rows(:batch as b, zone_id text)
join webhook_endpoints w on w.zone_id = b.zone_id and coalesce(w.enabled, 0) = 1;

-- name: webhook_deliveries_insert
-- One per endpoint and event: a process that continues from an older position inserts nothing twice.
insert into webhook_deliveries (endpoint_id, zone_id, id, pos, type, body, trace, status, attempts, queue, next_at,
    answer_status, error, created_at, updated_at, delivered_at)
select columns(b as delivery)
from rows(:batch as b, endpoint_id text, zone_id text, id text, pos bigint, type text, body text, trace text, status text,
    attempts bigint, queue text, next_at bigint, answer_status bigint, error text, created_at bigint, updated_at bigint,
    delivered_at bigint)
where true
on conflict (endpoint_id, zone_id, id) do nothing;

-- name: webhook_deliveries_count_pending
-- The backlog of an endpoint, counted only up to the limit.
select count(*)
from (select 1 from webhook_deliveries d where d.queue = :queue limit :limit) waiting;

-- name: webhook_endpoints_with_pending
-- For delivery workers, across zones: each endpoint with pending deliveries, and when the first of them is due. The
-- recursion jumps from endpoint to endpoint in the index of pending deliveries, so the cost does not grow with the
-- number of deliveries per endpoint. Endpoints without free slots are excluded; a row of `excluded` with a null
-- endpoint excludes a whole zone. Disabled endpoints come first: their deliveries are not sent but marked as failed.
with recursive waiting(queue) as (
    select min(d.queue) from webhook_deliveries d where d.queue is not null
    union all
    select (select min(d.queue) from webhook_deliveries d where d.queue > w.queue)
    from waiting w
    where w.queue is not null
)
select w.zone_id, w.id, w.enabled, (select min(d.next_at) from webhook_deliveries d where d.queue = q.queue), now_ms()
from waiting q
join webhook_endpoints w on w.id = q.queue
where not exists (
    select 1 from rows(:excluded as f, zone_id text, endpoint_id text)
    where f.zone_id = w.zone_id and (f.endpoint_id is null or f.endpoint_id = w.id))
order by w.enabled, 4
limit :limit;

-- name: webhook_deliveries_due
-- The first due deliveries of an endpoint, without those that another server is claiming (`skip locked`).
select columns(d as delivery)
from webhook_deliveries d
where d.queue = :queue and d.next_at <= (select now_ms()) and coalesce(d.zone_id, '') = :zone_id
order by d.next_at
limit :limit
for update skip locked;

-- name: webhook_deliveries_claim
-- The attempt counts from the claim, so that it also counts if the server dies. `from_next_at` is the due time as read.
update webhook_deliveries
set attempts = attempts + 1, next_at = b.lease_expires_at, updated_at = :now
from rows(:batch as b, endpoint text, zone text, delivery text, from_next_at bigint, lease_expires_at bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.delivery and next_at = b.from_next_at;

-- name: webhook_deliveries_get
-- Deliveries by id, in any state.
select columns(d as delivery)
from rows(:batch as b, endpoint_id text, zone_id text, id text)
join webhook_deliveries d on d.endpoint_id = b.endpoint_id and d.zone_id = b.zone_id and d.id = b.id;

-- name: webhook_deliveries_report
-- Records outcomes of attempts. `lease_expires_at` does not match if the delivery was claimed again, was replayed or is
-- no longer pending.
update webhook_deliveries
set status = b.new_status, queue = b.new_queue, next_at = b.new_next_at, answer_status = b.new_answer, error = b.new_error,
    updated_at = b.new_updated_at, delivered_at = b.new_delivered_at
from rows(:batch as b, endpoint text, zone text, delivery text, lease_expires_at bigint, new_status text,
    new_queue text, new_next_at bigint, new_answer bigint, new_error text, new_updated_at bigint,
    new_delivered_at bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.delivery and next_at = b.lease_expires_at
returning endpoint_id, zone_id, id;

-- name: webhook_deliveries_replay
-- Works in every state. The report of a running attempt no longer matches the lease and is ignored.
update webhook_deliveries
set status = 'pending', attempts = 0, queue = b.new_queue, next_at = b.new_next_at, error = null, updated_at = b.new_next_at
from rows(:batch as b, endpoint text, zone text, delivery text, new_queue text, new_next_at bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.delivery;

-- name: webhook_deliveries_fail_pending
-- Fails the pending deliveries of a disabled endpoint, including those being sent: their reports no longer match and
-- are ignored.
update webhook_deliveries
set status = 'failed', queue = null, next_at = null, error = :error, updated_at = :now
where (endpoint_id, zone_id, id) in (
    select d.endpoint_id, d.zone_id, d.id
    from webhook_deliveries d
    join webhook_endpoints w on w.id = d.queue and w.enabled = 0
    where d.queue = :queue and coalesce(d.zone_id, '') = :zone_id
    order by d.next_at
    limit :limit
) and coalesce(queue, '') <> ''
returning id;

-- name: webhook_deliveries_page
-- The newest deliveries in one state, by an index: a list of failed deliveries must not scan all delivered ones.
select columns(d as delivery)
from webhook_deliveries d
where d.status = :status and d.endpoint_id = :endpoint_id and d.zone_id = :zone_id and d.id < :before
order by d.id desc
limit :limit;

-- name: webhook_deliveries_delete_expired
-- Retention, across zones: ended deliveries that were created long ago. Ids increase with time, and a partial index has
-- only ended deliveries, so a pass that finds nothing reads nothing.
delete from webhook_deliveries
where (endpoint_id, zone_id, id) in (
    select d.endpoint_id, d.zone_id, d.id
    from webhook_deliveries d
    where d.id < :before_id and d.queue is null
    order by d.id
    limit :limit
)
returning id;
