-- Writes the slot counters of zones, each as of a position in the log.
--
-- KEYS  for each zone: the public counter, and the position of that counter
-- ARGV  for each zone: taken slots, limit, the position, and a stored position to replace, or ''
--
-- Of two writers, the one with the later position wins, regardless of the order in which they write. The counter never
-- exceeds the limit. Returns how many counters were written.
local written_count = 0
for zone = 1, #KEYS / 2 do
  local counter_key, position_key = KEYS[2 * zone - 1], KEYS[2 * zone]
  local taken, limit = tonumber(ARGV[4 * zone - 3]), tonumber(ARGV[4 * zone - 2])
  local pos, replaced_pos = ARGV[4 * zone - 1], ARGV[4 * zone]
  local stored = redis.pcall('GET', position_key)
  if type(stored) ~= 'string' then stored = '' end
  local stored_pos = tonumber(stored)
  if not stored_pos or stored_pos <= tonumber(pos) or stored == replaced_pos then
    redis.call('SET', counter_key, math.min(taken, limit))
    redis.call('SET', position_key, pos)
    written_count = written_count + 1
  end
end
return written_count
