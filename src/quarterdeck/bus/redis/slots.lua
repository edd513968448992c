-- Writes how many slots of zones are taken, each as of a position of the log.
--
-- KEYS  for each zone: the key that others read, and the position it is of
-- ARGV  for each zone: how many are taken, how many there are, the position, and the position that is overruled or ''
--
-- Of two writers the one who knows the later position wins, whoever comes last; and no more are ever taken than there are.
-- Answers how many were written.
local written = 0
for zone = 1, #KEYS / 2 do
  local key, position = KEYS[2 * zone - 1], KEYS[2 * zone]
  local taken, limit = tonumber(ARGV[4 * zone - 3]), tonumber(ARGV[4 * zone - 2])
  local pos, overruled = ARGV[4 * zone - 1], ARGV[4 * zone]
  local stands = redis.pcall('GET', position)
  if type(stands) ~= 'string' then stands = '' end
  local known = tonumber(stands)
  if not known or known <= tonumber(pos) or stands == overruled then
    redis.call('SET', key, math.min(taken, limit))
    redis.call('SET', position, pos)
    written = written + 1
  end
end
return written
