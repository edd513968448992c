-- The row of a zone, in the order of `model.Zone`.
-- columns: id, name, frozen, quotas, created_at, updated_at, ended_at
-- The row of a member, in the order of `model.Member`.
-- columns member: zone_id, subject, role, added_by, created_at, updated_at

-- name: zones_lock
-- The one lock of admission, in order of id so that two batches never wait for each other.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update;

-- name: zones_lock_skip_locked
-- The same, passing over zones that another transaction holds: one busy zone must not stall the others.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update skip locked;

-- name: zones_existing
-- Tells a zone that is busy from one that does not exist.
select id from zones where id in (select b.id from rows(:batch as b, id text));

-- name: zone_get
-- One zone as it stands, for whoever only looks.
select columns(z)
from zones z where z.id = :id;

-- name: zone_usage
-- Zones with what is live in them: what has expired is gone, whether a sweep has come or not. The clock is asked once,
-- so that the index by expiry can be.
select columns(z), coalesce(s.live, 0) - coalesce(x.dead, 0), coalesce(c.live, 0) - coalesce(x.dead_children, 0)
from rows(:batch as b, id text)
join zones z on z.id = b.id
left join admission_counts s on s.zone_id = z.id and s.scope = 'zone' and s.key = ''
left join admission_counts c on c.zone_id = z.id and c.scope = 'concurrent' and c.key = ''
left join (
    select e.zone_id, count(*) as dead, count(e.parent_id) as dead_children
    from agent_sessions e
    where e.zone_id in (select a.id from rows(:batch as a, id text))
      and e.status <> 'terminated' and e.terminated_at is null and e.expires_at <= (select now_ms())
    group by e.zone_id
) x on x.zone_id = z.id;

-- name: zone_list
-- By id: the order of creation is nobody's business but an administrator's, and ids are what they type.
select columns(z)
from zones z where z.id > :after order by id limit :limit;

-- name: zone_insert
-- Nothing happens if another transaction made it meanwhile; the lock that follows finds it either way.
insert into zones (id, name, frozen, quotas, created_at, updated_at)
select id, name, 0, '{}', now_ms(), now_ms()
from rows(:batch as b, id text, name text)
where true
on conflict (id) do nothing
returning id;

-- name: zone_update
-- Made under the zone's lock.
update zones set name = :name, quotas = :quotas, updated_at = :now where id = :id;

-- name: zone_freeze
-- Made under the zone's lock, which every admission takes: from this commit on none is made, or all may be again.
update zones set frozen = :frozen, updated_at = :now where id = :id and ended_at is null;

-- name: zone_end
-- A zone that has ended stays as a row: what happened in it can be read, and its id is not given to another tenant.
update zones set ended_at = :now, updated_at = :now where id = :id and ended_at is null;

-- name: zone_members_get
-- For whoever speaks and whoever is spoken of, in the first round trip of every operation in a workspace.
select columns(m as member)
from rows(:batch as b, zone_id text, subject text)
join zone_members m on m.zone_id = b.zone_id and m.subject = b.subject;

-- name: zone_members_count
-- Read under the zones' locks, which every change of a member takes. A zone has so few that counting them costs less
-- than a count that must be kept right.
select m.zone_id, count(*), count(case when m.role = 'OWNER' then 1 end)
from rows(:batch as b, zone_id text)
join zone_members m on m.zone_id = b.zone_id
group by m.zone_id;

-- name: zone_members_page
-- By name: the primary key is the order.
select columns(m as member)
from zone_members m
where m.zone_id = :zone_id and m.subject > :after
order by m.subject
limit :limit;

-- name: zone_members_insert
-- Under the zone's lock, which whoever counted them holds: none is there twice, and none too many.
insert into zone_members (zone_id, subject, role, added_by, created_at, updated_at)
select columns(b as member)
from rows(:batch as b, zone_id text, subject text, role text, added_by text, created_at bigint, updated_at bigint);

-- name: zone_members_update
-- The guard names the role each may come from, as it was read under the zone's lock.
update zone_members
set role = b.new_role, updated_at = b.changed_at
from rows(:batch as b, zone text, name text, was text, new_role text, changed_at bigint)
where zone_id = b.zone and subject = b.name and coalesce(role, '') = b.was
returning zone_id, subject;

-- name: zone_members_delete
-- Under the zone's lock; what it returns is held against what was to go.
delete from zone_members
where (zone_id, subject) in (select b.zone, b.name from rows(:batch as b, zone text, name text))
returning zone_id, subject;
