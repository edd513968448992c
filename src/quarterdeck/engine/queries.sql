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
-- A zone's events after a position, oldest first. Of every type, or of those named.
select columns(e)
from events e
where zone_id = :zone_id and pos > :after
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
-- Every zone's events after a position: for the process's one tailer and for tests, never for a caller.
select columns(e)
from events e where pos > :after order by pos limit :limit;

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
