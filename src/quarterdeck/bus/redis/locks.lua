-- Who coordinates zones, as the database has decided it: shown for half a minute, and believed by nobody here.
--
-- KEYS     of zones
-- ARGV[1]  who; ARGV[2]  '1' if the database says so. Otherwise nobody holds its lease, since there is nothing to do, and
--          whoever is shown already stays, if that will end by itself.
for _, key in ipairs(KEYS) do
  local shown = redis.pcall('GET', key)
  local ends = redis.call('TTL', key)
  if ARGV[2] == '1' or shown == ARGV[1] or ends < 0 or ends > 30 then redis.call('SET', key, ARGV[1], 'EX', 30) end
end
return #KEYS
