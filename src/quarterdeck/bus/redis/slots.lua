-- Writes the slot counters of zones, each as of a position of the log.
--
-- KEYS  for each zone: the public counter, and the position of that counter
-- ARGV  for each zone: taken slots, limit, the position, and a stored position to replace, or ''
--
-- Of two writers, the one with the later position wins, in whatever order they write. The counter never exceeds the
-- limit. Returns how many counters were written.
local written = 0
for zone = 1, #KEYS / 2 do
  local key, position = KEYS[2 * zone - 1], KEYS[2 * zone]
  local taken, limit = tonumber(ARGV[4 * zone - 3]), tonumber(ARGV[4 * zone - 2])
  local pos, replaced = ARGV[4 * zone - 1], ARGV[4 * zone]
  local stored = redis.pcall('GET', position)
  if type(stored) ~= 'string' then stored = '' end
  local stored_pos = tonumber(stored)
  if not stored_pos or stored_pos <= tonumber(pos) or stored == replaced then
    redis.call('SET', key, math.min(taken, limit))
    redis.call('SET', position, pos)
    written = written + 1
  end
end
return written
