-- Shows which process coordinates zones, as decided by the database, for 30 seconds. The server itself never reads it.
--
-- KEYS     one per zone
-- ARGV[1]  the process; ARGV[2]  '1' if it holds the lease in the database. Otherwise no process holds it, since there
--          is nothing to do, and a process that is already shown stays, if its key expires within 30 seconds.
for _, key in ipairs(KEYS) do
  local shown = redis.pcall('GET', key)
  local ttl = redis.call('TTL', key)
  if ARGV[2] == '1' or shown == ARGV[1] or ttl < 0 or ttl > 30 then redis.call('SET', key, ARGV[1], 'EX', 30) end
end
return #KEYS
