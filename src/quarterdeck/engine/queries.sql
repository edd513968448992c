-- The row of an event, in the order of `events.Event`.
-- columns: pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at

-- name: clock
-- The database's clock decides. Sent after the locks, so that time never runs backwards between two holders of one lock.
select now_ms();

-- name: schema_get_revision
-- What the tables are like by now, which another release may have changed since this one began to serve.
select version_num from alembic_version;

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

-- name: log_find_event
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

-- name: log_newest
-- planned: each time
-- A zone's events of certain types before a position, newest first, and no further back than `downto`.
select columns(e)
from events e
where zone_id = :zone_id and pos < :before and pos >= :downto
  and type in (select t.name from rows(:types as t, name text))
order by pos desc
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

-- name: keys_delete_expired
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

-- name: lease_get
-- For whoever wants to know who holds it, and for how long.
select term, holder, expires_at from leases where name = :name;

-- name: lease_check_term
-- Read in the same transaction as every write of a leased pass. The share lock holds off a taker until this commit.
select term from leases where name = :name and term = :term for share;

-- name: leases_check_terms
-- The same for a batch, whose commands may come of several terms: what of them is not over.
select l.name, l.term
from rows(:batch as b, name text, term bigint)
join leases l on l.name = b.name and l.term = b.term
order by l.name, l.term
for share;

-- The row of a seal, in the order of `core.seals.Seal`.
-- columns seal: number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at

-- name: log_lowest_position
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

-- name: log_delete_expired
-- Only what the newest seal attests as removable, whatever the caller believes: the statement asks for itself.
delete from events
where pos <= :upto and pos <= (select s.floor from seals s order by s.number desc limit 1);

-- A sink as it stands, in the order of `sinks.Standing`.
-- columns sink: name, id, position, updated_at
--
-- What waits for a sink to take it, or was given up, in the order of `sinks.Parked`.
-- columns parked: sink, pos, entry, zone_id, stream, subject, fields, attempts, next_at, dead_at, error, created_at

-- name: sink_create
-- A sink tells what happens from its first start on: what happened before it is not news.
insert into sinks (name, id, position, updated_at)
select :name, :id, h.pos, now_ms() from log_head h where h.id = 1
on conflict (name) do nothing;

-- name: sink_touch
-- Says that somebody still runs it, however little there is to tell: a sink that nobody runs holds no events back.
update sinks set updated_at = now_ms() where name = :name;

-- name: sink_state
-- Where a sink stands, where the log does, since when something waits to be told, and when something is due again.
select columns(s as sink), h.floor, h.pos,
  (select e.at from events e where e.pos > s.position order by e.pos limit 1),
  (select min(w.next_at) from sink_entries w where w.sink = s.name and w.dead_at is null)
from sinks s
join log_head h on h.id = 1
where s.name = :name;

-- name: sink_advance
-- Under the fence, and never back.
update sinks set position = :position, updated_at = now_ms()
where name = :name and id = :id and position <= :position
returning position;

-- name: sink_entries_list_due
-- What may be tried again: of each stream and subject only the oldest that is not given up, since the others wait for it.
-- (Where dead_at is wrapped, here and below, it is so that no index of the waiting is taken for it: a plan made while
-- nothing waited would look through all that waits.)
select columns(w as parked)
from sink_entries w
where w.sink = :sink and w.dead_at is null and w.next_at <= (select now_ms())
  and w.pos = (
    select min(o.pos)
    from sink_entries o
    where o.sink = w.sink and o.stream = w.stream and o.subject = w.subject and coalesce(o.dead_at, -1) < 0
  )
order by w.next_at
limit :limit;

-- name: sink_entries_next_due
-- When something waits to be tried again; null if nothing does.
select min(w.next_at) from sink_entries w where w.sink = :sink and w.dead_at is null;

-- name: sink_entries_waiting
-- For which of these streams and subjects something waits, and until when.
select b.stream, b.subject, max(w.next_at)
from rows(:batch as b, sink text, stream text, subject text)
join sink_entries w on w.sink = b.sink and w.stream = b.stream and w.subject = b.subject
  and coalesce(w.dead_at, -1) < 0
group by b.stream, b.subject;

-- name: sink_entries_insert
-- In the transaction that moves the position past them: up to it an entry is this table's business, beyond it the log's.
insert into sink_entries (sink, pos, entry, zone_id, stream, subject, fields, attempts, next_at, dead_at, error, created_at)
select columns(b as parked)
from rows(:batch as b, sink text, pos bigint, entry bigint, zone_id text, stream text, subject text, fields text,
          attempts bigint, next_at bigint, dead_at bigint, error text, created_at bigint);

-- name: sink_entries_delete
-- What stands in the stream needs no row.
delete from sink_entries
where (sink, pos, entry) in (
    select b.sink, b.pos, b.entry from rows(:batch as b, sink text, pos bigint, entry bigint)
);

-- name: sink_entries_defer
-- What was refused again: tried later, or given up. The guard names the attempts, so that one try counts once.
update sink_entries
set attempts = attempts + 1, next_at = b.due_at, dead_at = b.given_up_at, error = b.why
from rows(:batch as b, of_sink text, of_pos bigint, of_entry bigint, tries bigint, due_at bigint, given_up_at bigint,
          why text)
where sink = b.of_sink and pos = b.of_pos and entry = b.of_entry and attempts = b.tries and coalesce(dead_at, -1) < 0;

-- name: sink_entries_defer_following
-- With what was put off, all that waits behind it: else it would be looked at in vain until then.
update sink_entries set next_at = b.due_at
from rows(:batch as b, of_sink text, of_stream text, of_subject text, due_at bigint)
where sink = b.of_sink and stream = b.of_stream and subject = b.of_subject and next_at < b.due_at
  and coalesce(dead_at, -1) < 0;

-- name: sinks_lowest_position
-- How far the log may be forgotten for all that sinks still have to tell.
select min(s.position) from sinks s;

-- name: sinks_list
-- Every sink that there is, run by somebody or not.
select columns(s as sink) from sinks s order by s.name;

-- name: sink_entries_count
-- How many wait and how many were given up.
select count(*) - count(w.dead_at), count(w.dead_at) from sink_entries w where w.sink = :sink;

-- name: sink_entries_page
-- For people: what was given up first, the newest of it first; then what is tried again.
select columns(w as parked)
from sink_entries w
where w.sink = :sink
order by case when w.dead_at is null then 1 else 0 end, w.pos desc, w.entry
limit :limit;

-- name: sink_entries_requeue
-- What was given up is tried again as if it were new; the one named, or all.
update sink_entries set dead_at = null, attempts = 0, next_at = now_ms()
where sink = :sink and dead_at is not null and (cast(:pos as bigint) is null or pos = cast(:pos as bigint))
returning pos;

-- name: sink_entries_delete_expired
-- What was given up long ago, a few at a time.
delete from sink_entries
where (sink, pos, entry) in (
    select w.sink, w.pos, w.entry
    from sinks s
    join sink_entries w on w.sink = s.name and w.dead_at < :before
    limit :limit
)
returning pos;

-- name: sinks_abandoned
-- Sinks that nobody has run for long: their servers are gone, or are no longer told of them.
select s.name from sinks s where s.updated_at < :before;

-- name: sink_delete_expired
-- The guard names the time again: one that somebody runs since stays.
delete from sinks where name = :name and updated_at < :before
returning name;

-- name: sink_entries_delete_all
-- In the transaction that forgets their sink.
delete from sink_entries where sink = :sink;

-- name: log_has_event
-- Whether this very event stands at this position.
select 1 from events e where e.pos = :pos and e.id = :id;

-- name: log_zones_changed
-- Which of these zones have an event of these types after a position and an instant: null if none. As a subquery that
-- gives one row it cannot become a join, which might begin with all events.
select b.zone, (
    select 1
    from events e
    where e.zone_id = b.zone and e.pos > b.after and e.at > :since
      and e.type in (select t.name from rows(:types as t, name text))
    limit 1
)
from rows(:batch as b, zone text, after bigint);

-- name: secret_checks_lock
-- Whoever starts passes here, one after the other: the row of no key stays locked until the commit, so that of two who
-- bring different keys to a fresh database the second sees the first.
insert into secret_checks (key_id, sealed, created_at)
values ('', '', now_ms())
on conflict (key_id) do update set created_at = excluded.created_at;

-- name: secret_checks_all
-- The keys that values may be sealed with, each with a word that it has sealed.
select key_id, sealed from secret_checks where key_id <> '' order by key_id;

-- name: secret_checks_add
-- Before the first value is sealed with it. The same key of another process is there already.
insert into secret_checks (key_id, sealed, created_at)
values (:key_id, :sealed, now_ms())
on conflict (key_id) do nothing;

-- name: secret_checks_delete
-- Nothing is sealed with it any more; the row of no key is nobody's to forget.
delete from secret_checks where key_id = :key_id and key_id <> '' returning key_id;
