-- Writes which process coordinates each zone, to keys that expire after 30 seconds. Only other programs read them.
--
-- KEYS     one per zone
-- ARGV[1]  the process; ARGV[2]  '1' if it holds the lease in the database
--
-- When there is nothing to coordinate, no process holds the lease. A key that names another process is then left alone,
-- unless it does not expire within 30 seconds.
for _, key in ipairs(KEYS) do
  local stored = redis.pcall('GET', key)
  local ttl = redis.call('TTL', key)
  if ARGV[2] == '1' or stored == ARGV[1] or ttl < 0 or ttl > 30 then redis.call('SET', key, ARGV[1], 'EX', 30) end
end
return #KEYS
