-- The row of a key, in the order of `model.ApiKey`. The digest is not among them: only `keys_with_digest` reads it.
-- columns: zone_id, id, name, application_id, scopes, session_id, created_by, created_at, expires_at, revoked_at

-- name: keys_with_digest
-- Gathered: every request that shows a key asks this, and one statement answers all that wait.
select k.digest, columns(k)
from rows(:batch as b, zone_id text, id text)
join api_keys k on k.zone_id = b.zone_id and k.id = b.id;

-- name: keys_count_live
-- Read under the zones' locks, which every making of a key takes, so nothing is added before what it decides commits.
-- In two parts, each a range of one index: what has expired or was revoked, however much of it, is not walked through.
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
-- Ids are made by the server before this statement, so nothing needs to be paired with what it returns.
insert into api_keys (digest, zone_id, id, name, application_id, scopes, session_id, created_by, created_at, expires_at,
    revoked_at)
select b.digest, columns(b)
from rows(:batch as b, digest text, zone_id text, id text, name text, application_id text, scopes text,
    session_id text, created_by text, created_at bigint, expires_at bigint, revoked_at bigint);

-- name: keys_lock
-- In order of the primary key, so that two batches that revoke the same keys never wait for each other.
select columns(k)
from api_keys k
where (k.zone_id, k.id) in (select b.zone_id, b.id from rows(:batch as b, zone_id text, id text))
order by k.zone_id, k.id
for update;

-- name: keys_revoke
-- The guard names where each may come from: not revoked, which is 0, as it was read under its lock. (A condition on the
-- table alone would be looked up first by a plan made when the table was empty, and for ever.)
update api_keys
set revoked_at = :now
from rows(:batch as b, zone text, key_id text, was bigint)
where zone_id = b.zone and id = b.key_id and coalesce(revoked_at, 0) = b.was
returning zone_id, id;

-- name: keys_live_in_zones
-- For zones that end: the keys that go with them, found as `keys_count_live` counts them. To lock them is a step of its own.
select k.zone_id, k.id
from rows(:batch as b, zone_id text)
join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at is null
union all
select k.zone_id, k.id
from rows(:batch as b, zone_id text)
join api_keys k on k.zone_id = b.zone_id and k.revoked_at is null and k.expires_at > (select now_ms());

-- name: keys_page
-- planned: each time
-- Newest first: ids are made in order of time, so the primary key is the order.
select columns(k)
from api_keys k
where k.zone_id = :zone_id and (cast(:before as text) is null or k.id < cast(:before as text))
order by k.id desc
limit :limit;
