-- The row of an event, in the order of `event_log.Event`.
-- columns: pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at

-- name: clock
-- The time for all decisions. Read after the locks, so that time never decreases between two holders of one lock.
select now_ms();

-- name: schema_get_revision
-- The current schema revision. Another release may have changed it since this process started.
select version_num from alembic_version;

-- name: log_advance
-- The last lock of every transaction, held until its commit: only its holder allocates positions, so position order is
-- commit order and there are no gaps.
update log_head set pos = pos + :count where id = 1;

-- name: log_append
-- Reads the head that this transaction has just advanced; `place` counts back from it.
insert into events (pos, id, zone_id, type, subject, actor, from_state, to_state, data, trace, at)
select h.pos - b.place, b.id, b.zone_id, b.type, b.subject, b.actor, b.from_state, b.to_state, b.data, b.trace, b.at
from rows(:batch as b, place bigint, id text, zone_id text, type text, subject text, actor text,
          from_state text, to_state text, data text, trace text, at bigint)
join log_head h on h.id = 1;

-- name: log_find_event
-- Whether a batch was committed: if it was, its first event exists. Searched by subject, which has an index.
select 1 from events where subject = :subject and id = :id;

-- name: log_page
-- planned: each time
-- A zone's events after a position, oldest first, of all types or of the given ones. If types are given, it stops at
-- `upto`: a search for rare events must not scan the complete log in one statement.
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
-- A zone's events of given types before a position, newest first, not further back than `downto`.
select columns(e)
from events e
where zone_id = :zone_id and pos < :before and pos >= :downto
  and type in (select t.name from rows(:types as t, name text))
order by pos desc
limit :limit;

-- name: log_tail
-- Events of all zones after a position: for the tailer, the sealer, sinks and tests, never for a caller.
select columns(e)
from events e where pos > :after order by pos limit :limit;

-- name: log_bounds
-- The range of the log: everything above the floor, up to the head.
select floor, pos from log_head where id = 1;

-- name: log_replay
-- planned: each time
-- A page after a position, with the bounds of the log. One statement reads both, so they are from one
-- snapshot. The bounds show whether retention has deleted part of the page. A page with fewer than `limit` rows is
-- complete up to the head or `upto`.
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
-- The stored records for the keys of a batch.
select k.zone_id, k.application_id, k.operation, k.key, k.digest, k.subject_id
from rows(:batch as b, zone_id text, application_id text, operation text, key text)
join idempotency_keys k on k.zone_id = b.zone_id and k.application_id = b.application_id
  and k.operation = b.operation and k.key = b.key;

-- name: keys_store
-- Overwrites: the caller has checked, under the zone's lock, that the object that the key referred to has ended.
insert into idempotency_keys (zone_id, application_id, operation, key, digest, subject_id, created_at)
select zone_id, application_id, operation, key, digest, subject_id, created_at
from rows(:batch as b, zone_id text, application_id text, operation text, key text, digest text, subject_id text,
          created_at bigint)
where true
on conflict (zone_id, application_id, operation, key)
do update set digest = excluded.digest, subject_id = excluded.subject_id, created_at = excluded.created_at;

-- name: keys_slice
-- The next keys in the order of the primary key. There is no index by age: every spawn would have to update it.
select k.zone_id, k.application_id, k.operation, k.key, k.created_at
from idempotency_keys k
where (k.zone_id, k.application_id, k.operation, k.key) > (:zone_id, :application_id, :operation, :key)
order by k.zone_id, k.application_id, k.operation, k.key
limit :limit;

-- name: keys_delete_expired
-- Repeats the condition on the age, so that a key that was stored again since it was read is kept.
delete from idempotency_keys
where (zone_id, application_id, operation, key) in (
    select b.zone_id, b.application_id, b.operation, b.key
    from rows(:batch as b, zone_id text, application_id text, operation text, key text)
  ) and created_at < :before;

-- name: lease_create
-- A lease that was never held: term 0, expired.
insert into leases (name, term, holder, expires_at) values (:name, 0, '', 0) on conflict (name) do nothing;

-- name: lease_take
-- Each acquisition starts a new term, even by the same holder, so that an earlier term can no longer write.
update leases set term = term + 1, holder = :holder, expires_at = now_ms() + :ttl
where name = :name and expires_at <= now_ms()
returning term;

-- name: lease_renew
-- Only the current term can renew. After a takeover no row is returned, so the former holder detects it.
update leases set expires_at = now_ms() + :ttl
where name = :name and term = :term and holder = :holder
returning term;

-- name: lease_release
-- Lets the next holder take the lease at once instead of after the TTL.
update leases set expires_at = 0 where name = :name and term = :term and holder = :holder;

-- name: lease_get
-- The holder and the expiry, for reports.
select term, holder, expires_at from leases where name = :name;

-- name: lease_check_term
-- Runs in every transaction that writes under a lease. The share lock blocks a new holder until the commit.
select term from leases where name = :name and term = :term for share;

-- name: leases_check_terms
-- The same for a batch whose commands may have different terms. Returns the valid terms.
select l.name, l.term
from rows(:batch as b, name text, term bigint)
join leases l on l.name = b.name and l.term = b.term
order by l.name, l.term
for share;

-- The row of a seal, in the order of `core.audit_seal.Seal`.
-- columns seal: number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at

-- name: log_lowest_position
-- The oldest event. Retention deletes from here.
select e.pos from events e order by e.pos limit 1;

-- name: seal_newest
-- The newest seal. The next seal follows it, and its floor is the last one that was signed.
select columns(s as seal) from seals s order by s.number desc limit 1;

-- name: seal_ends
-- The ends of the seals above a position; of several with the same end, the oldest first. Index-only, so that no leaves
-- are read.
select s.last_pos, s.number, s.at from seals s where s.last_pos > :above order by s.last_pos, s.number limit :limit;

-- name: seal_insert
-- Runs under the fence. The number is the primary key, so two seals cannot follow the same one.
insert into seals (number, first_pos, last_pos, floor, digest, leaves, previous, hash, kid, signature, at)
select columns(b as seal)
from rows(:batch as b, number bigint, first_pos bigint, last_pos bigint, floor bigint, digest text, leaves text,
          previous text, hash text, kid text, signature text, at bigint);

-- name: log_raise_floor
-- Never lowers the floor: a reader that has restarted at the floor must not find older events again.
update log_head set floor = :floor where id = 1 and floor < :floor and pos >= :floor
returning floor;

-- name: log_delete_expired
-- Deletes only up to the floor of the newest seal, whatever the caller passes.
delete from events
where pos <= :upto and pos <= (select s.floor from seals s order by s.number desc limit 1);

-- The row of a sink, in the order of `sinks.SinkRow`.
-- columns sink: name, id, position, updated_at
--
-- The row of an entry that is waiting for a retry or is dead, in the order of `sinks.ParkedEntry`.
-- columns parked: sink, pos, entry, zone_id, stream, subject, fields, attempts, next_at, dead_at, error, created_at

-- name: sink_create
-- A sink delivers events from its creation on, so it starts at the head of the log.
insert into sinks (name, id, position, updated_at)
select :name, :id, h.pos, now_ms() from log_head h where h.id = 1
on conflict (name) do nothing;

-- name: sink_touch
-- Records that a server is still running the sink, even without work: an abandoned sink must not block retention.
update sinks set updated_at = now_ms() where name = :name;

-- name: sink_state
-- The position of a sink, the bounds of the log, the time of the oldest undelivered event, and the next retry.
select columns(s as sink), h.floor, h.pos,
  (select e.at from events e where e.pos > s.position order by e.pos limit 1),
  (select min(w.next_at) from sink_entries w where w.sink = s.name and w.dead_at is null)
from sinks s
join log_head h on h.id = 1
where s.name = :name;

-- name: sink_advance
-- Runs under the fence. The position never decreases.
update sinks set position = :position, updated_at = now_ms()
where name = :name and id = :id and position <= :position
returning position;

-- name: sink_entries_list_due
-- Due retries: for each stream and subject only the oldest entry that is not dead, since the others wait for it.
-- (`coalesce(dead_at, -1) < 0`, here and below, keeps the planner from using the partial index of waiting entries: a plan
-- made while that index was empty would scan all of them.)
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
-- The time of the next retry; null if there is none.
select min(w.next_at) from sink_entries w where w.sink = :sink and w.dead_at is null;

-- name: sink_entries_waiting
-- Which of these streams and subjects have waiting entries, and when the last of these is due.
select b.stream, b.subject, max(w.next_at)
from rows(:batch as b, sink text, stream text, subject text)
join sink_entries w on w.sink = b.sink and w.stream = b.stream and w.subject = b.subject
  and coalesce(w.dead_at, -1) < 0
group by b.stream, b.subject;

-- name: sink_entries_insert
-- Runs in the transaction that advances the position past these entries: up to the position, an undelivered entry is in
-- this table; beyond it, in the log.
insert into sink_entries (sink, pos, entry, zone_id, stream, subject, fields, attempts, next_at, dead_at, error, created_at)
select columns(b as parked)
from rows(:batch as b, sink text, pos bigint, entry bigint, zone_id text, stream text, subject text, fields text,
          attempts bigint, next_at bigint, dead_at bigint, error text, created_at bigint);

-- name: sink_entries_delete
-- A delivered entry needs no row.
delete from sink_entries
where (sink, pos, entry) in (
    select b.sink, b.pos, b.entry from rows(:batch as b, sink text, pos bigint, entry bigint)
);

-- name: sink_entries_defer
-- The target rejected the entry again: it is retried later, or dead. The condition on `attempts` makes one attempt
-- count once.
update sink_entries
set attempts = attempts + 1, next_at = b.due_at, dead_at = b.given_up_at, error = b.why
from rows(:batch as b, of_sink text, of_pos bigint, of_entry bigint, tries bigint, due_at bigint, given_up_at bigint,
          why text)
where sink = b.of_sink and pos = b.of_pos and entry = b.of_entry and attempts = b.tries and coalesce(dead_at, -1) < 0;

-- name: sink_entries_defer_following
-- Defers all entries behind a deferred one: otherwise each search for due entries would scan them until the deferred one is due.
update sink_entries set next_at = b.due_at
from rows(:batch as b, of_sink text, of_stream text, of_subject text, due_at bigint)
where sink = b.of_sink and stream = b.of_stream and subject = b.of_subject and next_at < b.due_at
  and coalesce(dead_at, -1) < 0;

-- name: sinks_lowest_position
-- The lowest position of all sinks: events after it are still needed, and retention stops there.
select min(s.position) from sinks s;

-- name: sinks_list
-- All sinks, whether or not a server runs them.
select columns(s as sink) from sinks s order by s.name;

-- name: sink_entries_count
-- How many entries are waiting, and how many are dead.
select count(*) - count(w.dead_at), count(w.dead_at) from sink_entries w where w.sink = :sink;

-- name: sink_entries_page
-- For administrators: dead entries first, newest first; then those that are retried.
select columns(w as parked)
from sink_entries w
where w.sink = :sink
order by case when w.dead_at is null then 1 else 0 end, w.pos desc, w.entry
limit :limit;

-- name: sink_entries_requeue
-- Retries dead entries as if they were new: those at one position, or all.
update sink_entries set dead_at = null, attempts = 0, next_at = now_ms()
where sink = :sink and dead_at is not null and (cast(:pos as bigint) is null or pos = cast(:pos as bigint))
returning pos;

-- name: sink_entries_delete_expired
-- Deletes entries that died before a given time, up to a limit per call.
delete from sink_entries
where (sink, pos, entry) in (
    select w.sink, w.pos, w.entry
    from sinks s
    join sink_entries w on w.sink = s.name and w.dead_at < :before
    limit :limit
)
returning pos;

-- name: sinks_abandoned
-- Sinks that no server has run for a long time: their servers are gone or no longer configure them.
select s.name from sinks s where s.updated_at < :before;

-- name: sink_delete_expired
-- Repeats the condition on the time, so that a sink that a server has run since then is kept.
delete from sinks where name = :name and updated_at < :before
returning name;

-- name: sink_entries_delete_all
-- Runs in the transaction that deletes the sink.
delete from sink_entries where sink = :sink;

-- name: log_has_event
-- Whether exactly this event is at this position.
select 1 from events e where e.pos = :pos and e.id = :id;

-- name: log_zones_changed
-- For each zone, 1 if it has an event of these types after a position and a time, otherwise null. A scalar subquery
-- cannot become a join, which might start with all events.
select b.zone, (
    select 1
    from events e
    where e.zone_id = b.zone and e.pos > b.after and e.at > :since
      and e.type in (select t.name from rows(:types as t, name text))
    limit 1
)
from rows(:batch as b, zone text, after bigint);

-- name: secret_checks_lock
-- Serializes starting processes: the row with the empty key id stays locked until the commit. If two processes start
-- with different keys on a new database, the second sees the key of the first.
insert into secret_checks (key_id, sealed, created_at)
values ('', '', now_ms())
on conflict (key_id) do update set created_at = excluded.created_at;

-- name: secret_checks_all
-- The keys that values may be encrypted with, each with its encrypted check text.
select key_id, sealed from secret_checks where key_id <> '' order by key_id;

-- name: secret_checks_add
-- Written before the first value is encrypted with the key. Another process may have added the same key already.
insert into secret_checks (key_id, sealed, created_at)
values (:key_id, :sealed, now_ms())
on conflict (key_id) do nothing;

-- name: secret_checks_delete
-- For a key without values. The row with the empty key id is only a lock and is never deleted.
delete from secret_checks where key_id = :key_id and key_id <> '' returning key_id;
