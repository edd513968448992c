-- The columns of a service, in the order of `model.Service`. Statements add a value for its last field, `is_live`:
-- whether the service has a live registrant. Registrants are in `service_sessions`, where the application itself has
-- the session id ''. `live` excludes sessions that have expired or that a cascade has marked as terminated. (`coalesce`
-- keeps the planner from using the index on live sessions, which would scan the whole zone for one session.)
-- columns: id, zone_id, application_id, agent_id, endpoint_url, protocol_versions, framework_name, framework_version
-- columns: capabilities, health, metadata_json, delivery, secret_number, active_invocations, last_heartbeat_at
-- columns: unregistered_at, created_at, updated_at
--
-- phrase live(a): coalesce(a.status, '') <> 'terminated' and a.terminated_at is null and a.expires_at > (select now_ms())
--
-- Reads registrations in key order and stops at the first live one, which is nearly always the first.
-- phrase has_live_registrant(s): case when exists (
-- phrase has_live_registrant(s):   select 1 from service_sessions r where r.zone_id = s.zone_id and r.service_id = s.id
-- phrase has_live_registrant(s):     and (r.session_id = '' or (
-- phrase has_live_registrant(s):       select 1 from agent_sessions a
-- phrase has_live_registrant(s):       where a.zone_id = r.zone_id and a.id = r.session_id and live(a)) = 1)
-- phrase has_live_registrant(s): ) then 1 else 0 end

-- name: services_get
-- Reads all services of a batch in one statement, so that it can be part of the batch's first round trip.
select columns(s), has_live_registrant(s)
from rows(:batch as b, zone_id text, id text)
join agent_services s on s.zone_id = b.zone_id and s.id = b.id;

-- name: services_of_endpoints
-- The existing services that a batch of registrations names, and whether the session in `agent_id` is live.
select columns(s), has_live_registrant(s), case when exists (
    select 1
    from agent_sessions l
    where l.zone_id = s.zone_id and l.id = s.agent_id and live(l)
) then 1 else 0 end
from rows(:batch as b, zone_id text, application_id text, endpoint_url text)
join agent_services s on s.zone_id = b.zone_id and s.application_id = b.application_id
  and s.endpoint_url = b.endpoint_url;

-- name: services_of_sessions
-- The services of sessions that send one heartbeat for all their services.
select r.session_id, columns(s), 1
from rows(:batch as b, zone_id text, session_id text)
join service_sessions r on r.zone_id = b.zone_id and r.session_id = b.session_id
join agent_services s on s.zone_id = r.zone_id and s.id = r.service_id;

-- name: services_registration_state
-- Runs after registrations were deleted. Returns whether the service has any left, and its first live session.
select columns(s), case when exists (
    select 1 from service_sessions r where r.zone_id = s.zone_id and r.service_id = s.id
) then 1 else 0 end, (
    select r.session_id
    from service_sessions r
    join agent_sessions a on a.zone_id = r.zone_id and a.id = r.session_id
    where r.zone_id = s.zone_id and r.service_id = s.id and live(a)
    order by r.session_id
    limit 1
)
from rows(:batch as b, zone_id text, id text)
join agent_services s on s.zone_id = b.zone_id and s.id = b.id;

-- name: services_page
-- planned: each time
-- Newest first: ids increase with time, so the index on ids gives the order. It is a partial index without unregistered
-- services, and its condition contains `coalesce`, so that only this statement uses it. A null filter matches every
-- service.
select columns(s), 1
from agent_services s
where s.zone_id = :zone_id and coalesce(s.unregistered_at, 0) = 0
  and (cast(:before as text) is null or s.id < cast(:before as text))
  and (cast(:application_id as text) is null or s.application_id = cast(:application_id as text))
  and (cast(:health as text) is null or s.health = cast(:health as text))
  and has_live_registrant(s) = 1
order by s.id desc
limit :limit;

-- name: services_page_of_session
-- planned: each time
-- Uses the index by session. Returns nothing for an ended session, even before its registrations are deleted.
select columns(s), 1
from service_sessions r
join agent_sessions a on a.zone_id = r.zone_id and a.id = r.session_id and live(a)
join agent_services s on s.zone_id = r.zone_id and s.id = r.service_id
where r.zone_id = :zone_id and r.session_id = :session_id
  and (cast(:before as text) is null or r.service_id < cast(:before as text))
order by r.service_id desc
limit :limit;

-- name: services_insert
-- The ids are generated before the insert, so it need not return them.
insert into agent_services (id, zone_id, application_id, agent_id, endpoint_url, protocol_versions, framework_name,
    framework_version, capabilities, health, metadata_json, delivery, secret_number, active_invocations,
    last_heartbeat_at, unregistered_at, created_at, updated_at)
select columns(b)
from rows(:batch as b, id text, zone_id text, application_id text, agent_id text, endpoint_url text,
    protocol_versions text, framework_name text, framework_version text, capabilities text, health text,
    metadata_json text, delivery text, secret_number bigint, active_invocations bigint, last_heartbeat_at bigint,
    unregistered_at bigint, created_at bigint, updated_at bigint);

-- name: services_update
-- The guard `was` is `unregistered_at` as read under the zone's lock, 0 for null. A service whose value differs is
-- neither updated nor returned.
update agent_services
set agent_id = b.new_agent_id, protocol_versions = b.new_protocol_versions, framework_name = b.new_framework_name,
    framework_version = b.new_framework_version, capabilities = b.new_capabilities, health = b.new_health,
    metadata_json = b.new_metadata, delivery = b.new_delivery, secret_number = b.new_secret_number,
    active_invocations = b.new_active, last_heartbeat_at = b.new_heartbeat_at, unregistered_at = b.new_unregistered_at,
    updated_at = b.new_updated_at
from rows(:batch as b, zone text, service text, was bigint, new_agent_id text, new_protocol_versions text,
    new_framework_name text, new_framework_version text, new_capabilities text, new_health text, new_metadata text,
    new_delivery text, new_secret_number bigint, new_active bigint, new_heartbeat_at bigint,
    new_unregistered_at bigint, new_updated_at bigint)
where zone_id = b.zone and id = b.service and coalesce(unregistered_at, 0) = b.was
returning id;

-- name: services_record_heartbeats
-- For heartbeats that change neither health nor metadata. Updates only two columns, neither of which is indexed. (The
-- guard `was`, 0 for a registered service, comes from the batch. With a constant, a plan cached while the table was
-- empty would use the index on unregistered services forever.)
update agent_services
set last_heartbeat_at = :now, active_invocations = b.active
from rows(:batch as b, zone text, service text, was bigint, active bigint)
where zone_id = b.zone and id = b.service and coalesce(unregistered_at, 0) = b.was
returning id;

-- name: services_delete_expired
-- Checks `unregistered_at` again: a service that was registered again in the meantime is not deleted. (`coalesce` keeps
-- the planner from using the index on all unregistered services.)
delete from agent_services
where (zone_id, id) in (
    select s.zone_id, s.id
    from rows(:batch as b, zone_id text, id text, before bigint)
    join agent_services s on s.zone_id = b.zone_id and s.id = b.id
      and coalesce(s.unregistered_at, b.before) < b.before
)
returning zone_id, id;

-- name: registrations_get
-- Which of these sessions have registered which of these services.
select r.zone_id, r.service_id, r.session_id
from rows(:batch as b, zone_id text, service_id text, session_id text)
join service_sessions r on r.zone_id = b.zone_id and r.service_id = b.service_id and r.session_id = b.session_id;

-- name: registrations_of_endpoints
-- The same as `registrations_get`, for services that are identified by endpoint instead of id.
select r.zone_id, r.service_id, r.session_id
from rows(:batch as b, zone_id text, application_id text, endpoint_url text, session_id text)
join agent_services s on s.zone_id = b.zone_id and s.application_id = b.application_id
  and s.endpoint_url = b.endpoint_url
join service_sessions r on r.zone_id = s.zone_id and r.service_id = s.id and r.session_id = b.session_id;

-- name: registrations_insert
-- Needs no `on conflict`: the zone is locked, and the batch has only registrations that do not exist yet.
insert into service_sessions (zone_id, service_id, session_id)
select b.zone_id, b.service_id, b.session_id
from rows(:batch as b, zone_id text, service_id text, session_id text);

-- name: registrations_delete
-- Deletes single registrations, each identified by service and session.
delete from service_sessions
where (zone_id, service_id, session_id) in (
    select b.zone_id, b.service_id, b.session_id
    from rows(:batch as b, zone_id text, service_id text, session_id text)
)
returning zone_id, service_id, session_id;

-- name: registrations_delete_of_sessions
-- All registrations of these sessions, found by the index on sessions. Most sessions have none. When such a session
-- ends, this is the only statement that this component runs.
delete from service_sessions
where (zone_id, session_id) in (select b.zone_id, b.session_id from rows(:batch as b, zone_id text, session_id text))
returning zone_id, service_id, session_id;

-- name: registrations_delete_of_services
-- All registrations of these services, by any session or application.
delete from service_sessions
where (zone_id, service_id) in (select b.zone_id, b.service_id from rows(:batch as b, zone_id text, service_id text))
returning zone_id, service_id, session_id;
