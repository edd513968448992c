-- Adds entries to one stream that had to wait, each once. Their positions lie behind the stream's marker, so each is
-- remembered by its own key for longer than anybody could still try to send it.
--
-- KEYS[2], [3]  the stream; the sorted set of keys that were added late, by the time at which they were
-- ARGV[3] to [5]  now and how long to remember, in milliseconds; MAXLEN;
--                 then for each entry: its key, how many values follow, field, value, ...
--
-- Answers {1, error, ...}: one for each entry, '' for one that stands in the stream.
local stream, late = KEYS[2], KEYS[3]
local now, remember, maxlen = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- Something of another type, that somebody has put there, remembers nothing.
if redis.call('TYPE', late).ok ~= 'zset' then redis.call('DEL', late) end
redis.call('ZREMRANGEBYSCORE', late, '-inf', now - remember)

local answers = {1}
local at = 6
while at <= #ARGV do
  local key, values = ARGV[at], tonumber(ARGV[at + 1])
  local refused = ''
  if not redis.call('ZSCORE', late, key) then
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, at + 2, at + 1 + values))
    if type(added) == 'table' and added.err then
      refused = added.err
    else
      redis.call('ZADD', late, now, key)
    end
  end
  answers[#answers + 1] = refused
  at = at + 2 + values
end
redis.call('PEXPIRE', late, remember)
return answers
