-- Publishes events, in order, and updates the marker in the same run.
--
-- KEYS[2]        the marker, "<position> <event id>" of the last published event
-- ARGV[3], [4]   'trust' or 'ignore', and the marker that the caller has checked; [5] the position before the batch;
--                then for each event: position, event id, channel, body
--
-- As in `deliver.lua`: returns {0, 'marker', the stored marker} without publishing if the stored marker is ahead of the
-- caller's position and differs from the one that the caller has checked. Otherwise returns {1}.
local marker = KEYS[2]
local mode, checked_marker, after_pos = ARGV[3], ARGV[4], tonumber(ARGV[5])
local stored = redis.pcall('GET', marker)
if type(stored) ~= 'string' then stored = '' end
local marker_pos = tonumber(string.match(stored, '^(%d+) ') or '0')
if marker_pos > after_pos and stored ~= checked_marker then return {0, 'marker', stored} end
if mode == 'ignore' then marker_pos = 0 end
local new_marker = stored
for index = 6, #ARGV, 4 do
  if tonumber(ARGV[index]) > marker_pos then
    redis.call('PUBLISH', ARGV[index + 2], ARGV[index + 3])
    new_marker = ARGV[index] .. ' ' .. ARGV[index + 1]
  end
end
if new_marker ~= stored then redis.call('SET', marker, new_marker) end
return {1}
