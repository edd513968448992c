-- The row of a zone, in the order of `model.Zone`.
-- columns: id, name, frozen, quotas, created_at, updated_at, ended_at

-- name: zones_lock_waiting
-- The one lock of admission, in order of id so that two batches never wait for each other.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update;

-- name: zones_lock_ready
-- The same, passing over zones that another transaction holds: one busy zone must not stall the others.
select columns(z)
from zones z
where z.id in (select b.id from rows(:batch as b, id text))
order by id
for update skip locked;

-- name: zones_known
-- Tells a zone that is busy from one that does not exist.
select id from zones where id in (select b.id from rows(:batch as b, id text));

-- name: zone_get
-- One zone as it stands, for whoever only looks.
select columns(z)
from zones z where z.id = :id;

-- name: zone_use
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
