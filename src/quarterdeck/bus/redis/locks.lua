-- Writes, for 30 seconds, which process coordinates each zone. Other programs read these keys; the server does not.
--
-- KEYS     one per zone
-- ARGV[1]  the process; ARGV[2]  '1' if it holds the lease in the database
--
-- If no process holds the lease, because there is nothing to do, a process that is already shown is kept, unless its key
-- does not expire within 30 seconds.
for _, key in ipairs(KEYS) do
  local shown = redis.pcall('GET', key)
  local ttl = redis.call('TTL', key)
  if ARGV[2] == '1' or shown == ARGV[1] or ttl < 0 or ttl > 30 then redis.call('SET', key, ARGV[1], 'EX', 30) end
end
return #KEYS
