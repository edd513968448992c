-- Publishes what has happened, in order, and moves the marker with it: both or neither.
--
-- KEYS[2]        the marker, "<position> <event id>" of the last that was published
-- ARGV[3], [4]   'trust' or 'overrule', and the marker that this is about; [5] the position the batch goes on from;
--                then for each: position, event id, channel, body
--
-- As in `deliver`: {0, 'marker', what stands there}, having published nothing, if the marker is ahead of the caller, who
-- has to find out whether it is of its own log. Otherwise {1}.
local marker = KEYS[2]
local mode, known, after = ARGV[3], ARGV[4], tonumber(ARGV[5])
local stands = redis.pcall('GET', marker)
if type(stands) ~= 'string' then stands = '' end
local reached = tonumber(string.match(stands, '^(%d+) ') or '0')
if reached > after and stands ~= known then return {0, 'marker', stands} end
if mode == 'overrule' then reached = 0 end
local last = stands
for at = 6, #ARGV, 4 do
  if tonumber(ARGV[at]) > reached then
    redis.call('PUBLISH', ARGV[at + 2], ARGV[at + 3])
    last = ARGV[at] .. ' ' .. ARGV[at + 1]
  end
end
if last ~= stands then redis.call('SET', marker, last) end
return {1}
