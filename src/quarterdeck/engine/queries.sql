-- The row of an event, in the order of `events.Event`.
-- columns: pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at

-- name: clock
-- The database's clock decides. Sent after the locks, so that time never runs backwards between two holders of one lock.
select now_ms();

-- name: log_advance
-- The last lock of every transaction, held until its commit: whoever holds it is the only one giving out positions,
-- so position order is commit order and there are no gaps.
update log_head set pos = pos + :count where id = 1;

-- name: log_append
-- Reads the head this transaction has just moved; `place` counts back from it.
insert into events (pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at)
select h.pos - b.place, b.id, b.zone_id, b.type, b.subject, b.actor, b.from_state, b.to_state, b.data, b.trace, b.at
from rows(:batch as b, place bigint, id text, zone_id text, type text, subject text, actor text,
          from_state text, to_state text, data text, trace text, at bigint)
join log_head h on h.id = 1;

-- name: log_witness
-- Whether a batch was committed: its first event is there or it is not. Found by subject, which has an index.
select 1 from events where subject = :subject and id = :id;

-- name: log_page
-- planned: each time
-- A zone's events after a position, oldest first. Of every type, or of those named, and then no further than `upto`: what
-- is rare must not have the whole log looked through in one statement.
select columns(e)
from events e
where zone_id = :zone_id and pos > :after and pos <= :upto
  and (cast(:any_type as bigint) = 1 or type in (select t.name from rows(:types as t, name text)))
order by pos
limit :limit;

-- name: log_page_of_subject
-- planned: each time
-- The same for one subject, by its own index.
select columns(e)
from events e
where subject = :subject and zone_id = :zone_id and pos > :after
  and (cast(:any_type as bigint) = 1 or type in (select t.name from rows(:types as t, name text)))
order by pos
limit :limit;

-- name: log_tail
-- Every zone's events after a position: for the process's one tailer, the sealer and tests, never for a caller.
select columns(e)
from events e where pos > :after order by pos limit :limit;

-- name: log_bounds
-- What is left of the log: everything above the floor, up to the head.
select floor, pos from log_head where id = 1;

-- name: log_replay
-- planned: each time
-- A page for somebody who goes on from a position. The bounds come with it in one statement, because they must be of
-- the same instant: a page that retention has passed by must be known for one, and a short page covers all up to `pos`.
select h.floor, h.pos as head, columns(e)
from log_head h
left join (
  select *
  from events
  where zone_id = :zone_id and pos > :after and pos <= :upto
    and (cast(:any_type as bigint) = 1 or type in (select t.name from rows(:types as t, name text)))
  order by pos
  limit :limit
) e on true
where h.id = 1
order by e.pos;

-- name: log_replay_of_subject
-- planned: each time
-- The same for one subject, by its own index.
select h.floor, h.pos as head, columns(e)
from log_head h
left join (
  select *
  from events
  where subject = :subject and zone_id = :zone_id and pos > :after
    and (cast(:any_type as bigint) = 1 or type in (select t.name from rows(:types as t, name text)))
  order by pos
  limit :limit
) e on true
where h.id = 1
order by e.pos;

-- name: keys_load
-- What the keys of a batch stand for.
select k.zone_id, k.application_id, k.operation, k.key, k.digest, k.subject_id
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key;

-- name: keys_store
-- Overwrites: the caller has seen, under the zone's lock, that what the key stood for has ended.
insert into idempotency_keys (zone_id, application_id, operation, key, digest, subject_id, created_at)
select zone_id, application_id, operation, key, digest, subject_id, created_at
from rows(:batch as b, zone_id text, application_id text, operation text, key text, digest text, subject_id text,
          created_at bigint)
where true
on conflict (zone_id, application_id, operation, key)
do update set digest = excluded.digest, subject_id = excluded.subject_id, created_at = excluded.created_at;

-- name: keys_slice
-- So many keys from a place on, in the order of their own index: there is none by age, which every spawn would pay for.
select k.zone_id, k.application_id, k.operation, k.key, k.created_at
from idempotency_keys k
where (k.zone_id, k.application_id, k.operation, k.key) > (:zone_id, :application_id, :operation, :key)
order by k.zone_id, k.application_id, k.operation, k.key
limit :limit;

-- name: keys_forget
-- The guard names the age again: a key that was bound anew since it was looked at stays.
delete from idempotency_keys
where (zone_id, application_id, operation, key) in (
    select b.zone_id, b.application_id, b.operation, b.key
    from rows(:batch as b, zone_id text, application_id text, operation text, key text)
  ) and created_at < :before;

-- name: lease_create
-- A lease nobody has held yet: term 0 has expired since for ever.
insert into leases (name, term, holder, expires_at) values (:name, 0, '', 0) on conflict (name) do nothing;

-- name: lease_take
-- Each taking is a new term, also by the same holder: what an earlier term began can no longer be written.
update leases set term = term + 1, holder = :holder, expires_at = now_ms() + :ttl
where name = :name and expires_at <= now_ms()
returning term;

-- name: lease_renew
-- Only the term itself renews; one that has been taken over moves nothing and learns of it.
update leases set expires_at = now_ms() + :ttl
where name = :name and term = :term and holder = :holder
returning term;

-- name: lease_release
-- Lets the next one in at once instead of after the time to live.
update leases set expires_at = 0 where name = :name and term = :term and holder = :holder;

-- name: lease_fence
-- Read in the same transaction as every write of a leased pass. The share lock holds off a taker until this commit.
select term from leases where name = :name and term = :term for share;

-- The row of a seal, in the order of `core.seals.Seal`.
-- columns seal: number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at

-- name: log_lowest
-- The oldest event there is: retention takes from there.
select e.pos from events e order by e.pos limit 1;

-- name: seal_newest
-- What the next seal follows, and whose floor is the one that counts.
select columns(s as seal) from seals s order by s.number desc limit 1;

-- name: seal_ends
-- Where seals end, above a position; of several that end there, the oldest first. All of it stands in the index, so that
-- no leaves are read.
select s.last_pos, s.number, s.at from seals s where s.last_pos > :above order by s.last_pos, s.number limit :limit;

-- name: seal_insert
-- Under the fence. The number is the key: two that follow the same seal could not both be written.
insert into seals (number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at)
select columns(b as seal)
from rows(:batch as b, number bigint, first_pos bigint, last_pos bigint, floor bigint, digest text, leaves text,
          previous text, hash text, kid text, signature text, at bigint);

-- name: log_raise_floor
-- Never down: who was told that a position is gone must not find it again.
update log_head set floor = :floor where id = 1 and floor < :floor and pos >= :floor
returning floor;

-- name: log_forget
-- Only what the newest seal attests as removable, whatever the caller believes: the statement asks for itself.
delete from events
where pos <= :upto and pos <= (select s.floor from seals s order by s.number desc limit 1);
