-- The row of an endpoint, in the order of `model.Endpoint`.
-- columns: zone_id, id, url, description, types, secret_number, rotated_at, enabled, disabled_reason, position
-- columns: failing_since, created_by, created_at, updated_at, removed_at
--
-- The row of a delivery, in the order of `model.Delivery`.
-- columns delivery: endpoint_id, zone_id, id, pos, type, body, trace, status, attempts, queue, next_at, answer_status
-- columns delivery: error, created_at, updated_at, delivered_at

-- name: webhooks_of_zones
-- All that a zone has, which are few: whoever counts them reads them anyway. What was removed is nobody's any more.
-- (Where a column is wrapped, here and below, and where nothing is ordered, it is so that a plan made while the table was
-- nearly empty goes by the zone.)
select columns(w)
from rows(:batch as b, zone_id text)
join webhook_endpoints w on w.zone_id = b.zone_id and coalesce(w.removed_at, -1) < 0;

-- name: webhooks_get
-- Endpoints as they stand, those that hear of nothing and those that were removed among them.
select columns(w)
from rows(:batch as b, zone_id text, id text)
join webhook_endpoints w on w.zone_id = b.zone_id and w.id = b.id;

-- name: webhooks_insert
-- Under the zone's lock. It hears of what is committed after this moment: the log's head is read here, and nobody who
-- commits later is given a position below it.
insert into webhook_endpoints (zone_id, id, url, description, types, secret_number, rotated_at, enabled, disabled_reason,
    position, failing_since, created_by, created_at, updated_at, removed_at)
select b.zone_id, b.id, b.url, b.description, b.types, b.secret_number, b.rotated_at, b.enabled, b.disabled_reason,
    h.pos, b.failing_since, b.created_by, b.created_at, b.updated_at, b.removed_at
from rows(:batch as b, zone_id text, id text, url text, description text, types text, secret_number bigint,
    rotated_at bigint, enabled smallint, disabled_reason text, position bigint, failing_since bigint, created_by text,
    created_at bigint, updated_at bigint, removed_at bigint)
join log_head h on h.id = 1;

-- name: webhooks_update
-- Under the zone's lock. When it began to fail is not among what is set: attempts say so, without that lock.
update webhook_endpoints
set url = b.new_url, description = b.new_description, types = b.new_types, secret_number = b.new_number,
    rotated_at = b.new_rotated_at, enabled = b.new_enabled, disabled_reason = b.new_reason, updated_at = b.new_updated_at,
    removed_at = b.new_removed_at
from rows(:batch as b, zone text, name text, new_url text, new_description text, new_types text, new_number bigint,
    new_rotated_at bigint, new_enabled smallint, new_reason text, new_updated_at bigint, new_removed_at bigint)
where zone_id = b.zone and id = b.name and coalesce(removed_at, -1) < 0
returning zone_id, id;

-- name: webhooks_reset_position
-- Those that hear again, of what happens from here on; and whatever had failed is forgotten.
update webhook_endpoints
set position = (select h.pos from log_head h where h.id = 1), failing_since = null
from rows(:batch as b, zone text, name text)
where zone_id = b.zone and id = b.name;

-- name: webhooks_clear_failing
-- What reached an endpoint, or its being another now, ends its failing.
update webhook_endpoints
set failing_since = null
from rows(:batch as b, zone text, name text)
where zone_id = b.zone and id = b.name and coalesce(failing_since, -1) >= 0;

-- name: webhooks_mark_failing
-- The first failure since anything reached it: the ones after it change nothing.
update webhook_endpoints
set failing_since = :now
from rows(:batch as b, zone text, name text)
where zone_id = b.zone and id = b.name and coalesce(failing_since, -1) < 0;

-- name: webhooks_delete_expired
-- Retention, across zones: endpoints that were removed long ago, once nothing is left of what was sent to them.
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
-- For the sink, across zones: the events of zones in which somebody hears, after a position and no further than `upto`.
-- The head of the log, and whether anybody hears at all, come with them in one statement, because they must be of the
-- same instant: an endpoint that is not seen here hears of nothing up to this head.
select h.floor, h.pos as head,
    (select count(*) from (select 1 from webhook_endpoints w where w.enabled = 1 limit 1) one) as hears,
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
-- Whether anybody hears of anything.
select 1 from webhook_endpoints w where w.enabled = 1 limit 1;

-- name: webhooks_enabled_in_zones
-- planned: each time
-- Who hears in these zones. Read after the events: of whatever was committed before one of those, something is seen.
select columns(w)
from rows(:batch as b, zone_id text)
join webhook_endpoints w on w.zone_id = b.zone_id and coalesce(w.enabled, 0) = 1;

-- name: webhook_deliveries_insert
-- One for each endpoint and event, for ever: whoever goes on from an older position writes what is there already.
insert into webhook_deliveries (endpoint_id, zone_id, id, pos, type, body, trace, status, attempts, queue, next_at,
    answer_status, error, created_at, updated_at, delivered_at)
select columns(b as delivery)
from rows(:batch as b, endpoint_id text, zone_id text, id text, pos bigint, type text, body text, trace text, status text,
    attempts bigint, queue text, next_at bigint, answer_status bigint, error text, created_at bigint, updated_at bigint,
    delivered_at bigint)
where true
on conflict (endpoint_id, zone_id, id) do nothing;

-- name: webhook_deliveries_count_pending
-- How many wait for an endpoint, counted no further than there may be.
select count(*)
from (select 1 from webhook_deliveries d where d.queue = :queue limit :limit) waiting;

-- name: webhook_endpoints_with_pending
-- For whoever delivers, across zones: each endpoint for which something waits, and when the first of it is due. From one
-- endpoint to the next in the index of what waits, however much waits for each. Those that have all the slots they may
-- have are passed over here; a zone that has all of its own stands there without an endpoint. Those that hear of nothing
-- any more stand first: what waits for them is ended.
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
    select 1 from rows(:full as f, zone_id text, endpoint_id text)
    where f.zone_id = w.zone_id and (f.endpoint_id is null or f.endpoint_id = w.id))
order by w.enabled, 4
limit :limit;

-- name: webhook_deliveries_due
-- The first of an endpoint's that are due, passing over what another server is just taking.
select columns(d as delivery)
from webhook_deliveries d
where d.queue = :queue and d.next_at <= (select now_ms()) and coalesce(d.zone_id, '') = :zone_id
order by d.next_at
limit :limit
for update skip locked;

-- name: webhook_deliveries_claim
-- Counted when it is taken: an attempt whose server dies is one of those it may have. The guard names the moment it was due.
update webhook_deliveries
set attempts = attempts + 1, next_at = b.until, updated_at = :now
from rows(:batch as b, endpoint text, zone text, name text, was bigint, until bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.name and next_at = b.was;

-- name: webhook_deliveries_get
-- Deliveries as they stand.
select columns(d as delivery)
from rows(:batch as b, endpoint_id text, zone_id text, id text)
join webhook_deliveries d on d.endpoint_id = b.endpoint_id and d.zone_id = b.zone_id and d.id = b.id;

-- name: webhook_deliveries_report
-- What came of attempts. The guard names the lease: one that has passed to another, or was sent again by hand, moves
-- nothing. So does what is not pending any more.
update webhook_deliveries
set status = b.new_status, queue = b.new_queue, next_at = b.new_next_at, answer_status = b.new_answer, error = b.new_error,
    updated_at = b.new_updated_at, delivered_at = b.new_delivered_at
from rows(:batch as b, endpoint text, zone text, name text, until bigint, new_status text, new_queue text,
    new_next_at bigint, new_answer bigint, new_error text, new_updated_at bigint, new_delivered_at bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.name and next_at = b.until
returning endpoint_id, zone_id, id;

-- name: webhook_deliveries_replay
-- By hand, from every state: whatever attempt is under way counts no more.
update webhook_deliveries
set status = 'pending', attempts = 0, queue = b.new_queue, next_at = b.new_next_at, error = null, updated_at = b.new_next_at
from rows(:batch as b, endpoint text, zone text, name text, new_queue text, new_next_at bigint)
where endpoint_id = b.endpoint and zone_id = b.zone and id = b.name;

-- name: webhook_deliveries_fail_pending
-- What waits for an endpoint that hears of nothing any more has failed with it. What is being sent just now, too: its
-- report moves nothing then.
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
-- The newest of one state: a few that have failed must not be looked for among all that were delivered.
select columns(d as delivery)
from webhook_deliveries d
where d.status = :status and d.endpoint_id = :endpoint_id and d.zone_id = :zone_id and d.id < :before
order by d.id desc
limit :limit;

-- name: webhook_deliveries_delete_expired
-- Retention, across zones: what is over and was made long ago. Ids are made in order of time, and what is over has an
-- index of its own, so that a pass that finds nothing looks at nothing.
delete from webhook_deliveries
where (endpoint_id, zone_id, id) in (
    select d.endpoint_id, d.zone_id, d.id
    from webhook_deliveries d
    where d.id < :before_id and d.queue is null
    order by d.id
    limit :limit
)
returning id;
