-- Adds entries to one stream, in order, and updates the stream's marker with them: both or neither.
--
-- KEYS[2], [3]  the stream; its marker, "<position> <event id>" of the last written event
-- ARGV[3], [4]  'trust' or 'ignore', and the marker that the caller has checked; [5] the position before the batch;
--               [6] MAXLEN; then for each entry: position, event id, the number of values, field, value, ...
--
-- Returns {0, 'marker', the stored marker} without writing if the marker is ahead of the caller and is not the one that
-- the caller has checked: the caller must find out whether it belongs to its own log. Otherwise returns {1, the number
-- of processed entries, error}. It stops at the first rejected entry, so that every entry behind the marker is in the
-- stream.
local stream, marker = KEYS[2], KEYS[3]
local mode, checked, after, maxlen = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

-- The marker may be missing, or have another type if another program wrote it. SET replaces it.
local stored = redis.pcall('GET', marker)
if type(stored) ~= 'string' then stored = '' end
local reached = tonumber(string.match(stored, '^(%d+) ') or '0')
if reached > after and stored ~= checked then return {0, 'marker', stored} end
if mode == 'ignore' then reached = 0 end

local last, processed, rejection = stored, 0, ''
local at = 7
while at <= #ARGV do
  local values = tonumber(ARGV[at + 2])
  if tonumber(ARGV[at]) > reached then
    local added = redis.pcall('XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, at + 3, at + 2 + values))
    if type(added) == 'table' and added.err then
      rejection = added.err
      break
    end
    last = ARGV[at] .. ' ' .. ARGV[at + 1]
  end
  processed = processed + 1
  at = at + 3 + values
end
if last ~= stored then redis.call('SET', marker, last) end
return {1, processed, rejection}
