-- Publishes events, in order, and updates the marker with them: both or neither.
--
-- KEYS[2]        the marker, "<position> <event id>" of the last published event
-- ARGV[3], [4]   'trust' or 'ignore', and the marker that the caller has checked; [5] the position before the batch;
--                then for each event: position, event id, channel, body
--
-- As in `deliver.lua`: returns {0, 'marker', the stored marker} without publishing if the marker is ahead of the
-- caller, which must find out whether it belongs to its own log. Otherwise returns {1}.
local marker = KEYS[2]
local mode, checked, after = ARGV[3], ARGV[4], tonumber(ARGV[5])
local stored = redis.pcall('GET', marker)
if type(stored) ~= 'string' then stored = '' end
local reached = tonumber(string.match(stored, '^(%d+) ') or '0')
if reached > after and stored ~= checked then return {0, 'marker', stored} end
if mode == 'ignore' then reached = 0 end
local last = stored
for at = 6, #ARGV, 4 do
  if tonumber(ARGV[at]) > reached then
    redis.call('PUBLISH', ARGV[at + 2], ARGV[at + 3])
    last = ARGV[at] .. ' ' .. ARGV[at + 1]
  end
end
if last ~= stored then redis.call('SET', marker, last) end
return {1}
