-- Adds delayed entries to one stream, each once. The stream's marker is already past their positions, so a retry is
-- recognized by the stored dedupe key of the entry instead.
--
-- KEYS[2], [3]  the stream; a sorted set of the dedupe keys of delayed entries, scored by the time they were added
-- ARGV[3] to [5]  the current time and how long to store dedupe keys, both in milliseconds; MAXLEN;
--                 then for each entry: its dedupe key, the number of values, field, value, ...
--
-- Returns {1, error, ...} with one error per entry: '' if the entry is in the stream.
local stream, dedupe_set = KEYS[2], KEYS[3]
local now_ms, retention_ms, maxlen = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- A key of another type was written by another program and holds no dedupe keys.
if redis.call('TYPE', dedupe_set).ok ~= 'zset' then redis.call('DEL', dedupe_set) end
redis.call('ZREMRANGEBYSCORE', dedupe_set, '-inf', now_ms - retention_ms)

local replies = {1}
local index = 6
while index <= #ARGV do
  local dedupe_key, value_count = ARGV[index], tonumber(ARGV[index + 1])
  local rejection = ''
  if not redis.call('ZSCORE', dedupe_set, dedupe_key) then
    local added = redis.pcall(
      'XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, index + 2, index + 1 + value_count)
    )
    if type(added) == 'table' and added.err then
      rejection = added.err
    else
      redis.call('ZADD', dedupe_set, now_ms, dedupe_key)
    end
  end
  replies[#replies + 1] = rejection
  index = index + 2 + value_count
end
redis.call('PEXPIRE', dedupe_set, retention_ms)
return replies
