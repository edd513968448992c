-- The columns of a zone, in the field order of `model.Zone`.
-- columns: id, name, frozen, quotas, created_at, updated_at, ended_at
-- The columns of a role assignment, in the field order of `model.RoleAssignment`.
-- columns member: zone_id, subject, role, added_by, created_at, updated_at

-- name: zones_lock
-- The only lock that admission takes. Zones are locked in order of id, so that two batches cannot deadlock.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update;

-- name: zones_lock_skip_locked
-- Skips zones that another transaction has locked: one busy zone must not delay the others.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update skip locked;

-- name: zones_existing
-- Distinguishes a locked zone from a missing one.
select id from zones where id in (select b.id from rows(:batch as b, id text));

-- name: zone_get
-- Takes no lock: for reads only.
select columns(z)
from zones z where z.id = :id;

-- name: zone_usage
-- Zones with the counts of their live sessions. Expired sessions do not count, even before a sweep ends them.
-- `now_ms()` is in a subquery, so that it is evaluated once and the index on expires_at can be used.
select columns(z), coalesce(s.live, 0) - coalesce(x.expired, 0), coalesce(c.live, 0) - coalesce(x.expired_children, 0)
from rows(:batch as b, id text)
join zones z on z.id = b.id
left join admission_counts s on s.zone_id = z.id and s.scope = 'zone' and s.key = ''
left join admission_counts c on c.zone_id = z.id and c.scope = 'concurrent' and c.key = ''
left join (
    select e.zone_id, count(*) as expired, count(e.parent_id) as expired_children
    from agent_sessions e
    where e.zone_id in (select a.id from rows(:batch as a, id text))
      and e.status <> 'terminated' and e.terminated_at is null and e.expires_at <= (select now_ms())
    group by e.zone_id
) x on x.zone_id = z.id;

-- name: zone_list
-- Ordered by id, because administrators look zones up by id.
select columns(z)
from zones z where z.id > :after order by id limit :limit;

-- name: zone_insert
-- If another transaction has created the zone, nothing is inserted, and the lock statement that follows finds the zone.
insert into zones (id, name, frozen, quotas, created_at, updated_at)
select id, name, 0, '{}', now_ms(), now_ms()
from rows(:batch as b, id text, name text)
where true
on conflict (id) do nothing
returning id;

-- name: zone_update
-- Runs under the zone's lock.
update zones set name = :name, quotas = :quotas, updated_at = :now where id = :id;

-- name: zone_freeze
-- Runs under the zone's lock, which every admission takes, so the change applies to all admissions after the commit.
update zones set frozen = :frozen, updated_at = :now where id = :id and ended_at is null;

-- name: zone_end
-- The row is kept: the zone's history stays readable, and the id cannot be reused.
update zones set ended_at = :now, updated_at = :now where id = :id and ended_at is null;

-- name: zone_members_get
-- The assignments of callers and of the subjects whose role they change. Every workspace operation reads them in its
-- first round trip.
select columns(m as member)
from rows(:batch as b, zone_id text, subject text)
join zone_members m on m.zone_id = b.zone_id and m.subject = b.subject;

-- name: zone_members_count
-- Runs under the zones' locks, which every change to an assignment takes. A zone has so few assignments that counting
-- them costs less than maintaining a counter.
select m.zone_id, count(*), count(case when m.role = 'OWNER' then 1 end)
from rows(:batch as b, zone_id text)
join zone_members m on m.zone_id = b.zone_id
group by m.zone_id;

-- name: zone_members_page
-- Ordered by subject, which is the order of the primary key within a zone.
select columns(m as member)
from zone_members m
where m.zone_id = :zone_id and m.subject > :after
order by m.subject
limit :limit;

-- name: zone_members_insert
-- Runs under the zone's lock, like the count before it, so no duplicate is inserted and the limit is not exceeded.
insert into zone_members (zone_id, subject, role, added_by, created_at, updated_at)
select columns(b as member)
from rows(:batch as b, zone_id text, subject text, role text, added_by text, created_at bigint, updated_at bigint);

-- name: zone_members_update
-- The guard `was` is the role as read under the zone's lock. An assignment with a different role is not updated.
update zone_members
set role = b.new_role, updated_at = b.changed_at
from rows(:batch as b, zone text, name text, was text, new_role text, changed_at bigint)
where zone_id = b.zone and subject = b.name and coalesce(role, '') = b.was
returning zone_id, subject;

-- name: zone_members_delete
-- Runs under the zone's lock. The caller compares the number of returned rows with the batch.
delete from zone_members
where (zone_id, subject) in (select b.zone, b.name from rows(:batch as b, zone text, name text))
returning zone_id, subject;
