-- Adds delayed entries to one stream, each once. The stream's marker is already past their positions, so a retry is
-- recognized by the stored dedupe key of the entry instead.
--
-- KEYS[2], [3]  the stream; the sorted set of the dedupe keys of delayed entries, by the time at which they were added
-- ARGV[3] to [5]  now and how long to store the keys, in milliseconds; MAXLEN;
--                 then for each entry: its dedupe key, the number of values, field, value, ...
--
-- Returns {1, error, ...}: one per entry, '' if the entry is in the stream.
local stream, delayed = KEYS[2], KEYS[3]
local now, keep, maxlen = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- A key of another type was written by another program and holds no dedupe keys.
if redis.call('TYPE', delayed).ok ~= 'zset' then redis.call('DEL', delayed) end
redis.call('ZREMRANGEBYSCORE', delayed, '-inf', now - keep)

local replies = {1}
local at = 6
while at <= #ARGV do
  local key, values = ARGV[at], tonumber(ARGV[at + 1])
  local rejection = ''
  if not redis.call('ZSCORE', delayed, key) then
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, at + 2, at + 1 + values))
    if type(added) == 'table' and added.err then
      rejection = added.err
    else
      redis.call('ZADD', delayed, now, key)
    end
  end
  replies[#replies + 1] = rejection
  at = at + 2 + values
end
redis.call('PEXPIRE', delayed, keep)
return replies
