-- Adds entries to one stream, in order, and moves the stream's marker with them: both or neither.
--
-- KEYS[2], [3]  the stream; its marker, "<position> <event id>" of the last event that was written
-- ARGV[3], [4]  'trust' or 'overrule', and the marker that this is about; [5] the position the batch goes on from;
--               [6] MAXLEN; then for each entry: position, event id, how many values follow, field, value, ...
--
-- Answers {0, 'marker', what stands there}, having written nothing, if the marker is ahead of the caller and the caller has
-- not said what to think of that one: it has to find out whether it is of its own log. Otherwise {1, entries dealt with,
-- error}. On the first entry that is refused it stops, so that no entry lies behind the marker that is not in the stream.
local stream, marker = KEYS[2], KEYS[3]
local mode, known, after, maxlen = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

-- Absent, or something of another type that somebody has put there: SET replaces it.
local stands = redis.pcall('GET', marker)
if type(stands) ~= 'string' then stands = '' end
local reached = tonumber(string.match(stands, '^(%d+) ') or '0')
if reached > after and stands ~= known then return {0, 'marker', stands} end
if mode == 'overrule' then reached = 0 end

local last, dealt_with, refused = stands, 0, ''
local at = 7
while at <= #ARGV do
  local values = tonumber(ARGV[at + 2])
  if tonumber(ARGV[at]) > reached then
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, at + 3, at + 2 + values))
    if type(added) == 'table' and added.err then
      refused = added.err
      break
    end
    last = ARGV[at] .. ' ' .. ARGV[at + 1]
  end
  dealt_with = dealt_with + 1
  at = at + 3 + values
end
if last ~= stands then redis.call('SET', marker, last) end
return {1, dealt_with, refused}
