-- The columns of a key, in the field order of `model.ApiKey`. Only `keys_with_digest` also reads the digest.
-- columns: zone_id, id, name, application_id, scopes, session_id, created_by, created_at, expires_at, revoked_at

-- name: keys_with_digest
-- Batched: one statement serves all waiting requests with a key.
select k.digest, columns(k)
from rows(:batch as b, zone_id text, id text)
join api_keys k on k.zone_id = b.zone_id and k.id = b.id;

-- name: keys_count_live
-- Runs under the zones' locks, which every key creation takes, so the count stays valid until the commit.
-- Each part of the union reads one range of an index, so that expired and revoked keys are not scanned.
select live.zone_id, count(*)
from (
    select k.zone_id
    from rows(:batch as b, zone_id text)
    join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at is null
    union all
    select k.zone_id
    from rows(:batch as b, zone_id text)
    join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at > (select now_ms())
) live
group by live.zone_id;

-- name: keys_insert
-- The server generates the ids, so the statement does not return them.
insert into api_keys (digest, zone_id, id, name, application_id, scopes, session_id, created_by, created_at, expires_at,
    revoked_at)
select b.digest, columns(b)
from rows(:batch as b, digest text, zone_id text, id text, name text, application_id text, scopes text,
    session_id text, created_by text, created_at bigint, expires_at bigint, revoked_at bigint);

-- name: keys_lock
-- Locks in primary-key order, so that two batches that revoke the same keys cannot deadlock.
select columns(k)
from api_keys k
where (k.zone_id, k.id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
order by k.zone_id, k.id
for update;

-- name: keys_revoke
-- The guard `was` is always 0, so a key that is already revoked is not updated. It is a column of the batch because a
-- plan made while the table was empty would evaluate a constant condition first, and PostgreSQL would keep that plan.
update api_keys
set revoked_at = :now
from rows(:batch as b, zone text, key_id text, was bigint)
where zone_id = b.zone and id = b.key_id and coalesce(revoked_at, 0) = b.was
returning zone_id, id;

-- name: keys_live_in_zones
-- The live keys of ending zones, by the same conditions as in `keys_count_live`. `keys_lock` locks them afterwards.
select k.zone_id, k.id
from rows(:batch as b, zone_id text)
join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at is null
union all
select k.zone_id, k.id
from rows(:batch as b, zone_id text)
join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at > (select now_ms());

-- name: keys_page
-- planned: each time
-- Newest first: ids increase with time, so the primary key gives the order.
select columns(k)
from api_keys k
where k.zone_id = :zone_id and (cast(:before as text) is null or k.id < cast(:before as text))
order by k.id desc
limit :limit;
