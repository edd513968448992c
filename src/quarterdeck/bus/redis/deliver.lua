-- Adds entries to one stream, in order, and updates the stream's marker in the same run.
--
-- KEYS[2], [3]  the stream; its marker, "<position> <event id>" of the last written event
-- ARGV[3], [4]  'trust' or 'ignore', and the marker that the caller has checked; [5] the position before the batch;
--               [6] MAXLEN; then for each entry: position, event id, the number of values, field, value, ...
--
-- Returns {0, 'marker', the stored marker} without writing if the stored marker is ahead of the caller's position and
-- differs from the one that the caller has checked. The caller must then check whether its log has the marker's event.
-- Otherwise returns {1, the number of processed entries, error}. The script stops at the first rejected entry, so that
-- every entry up to the marker is in the stream.
local stream, marker = KEYS[2], KEYS[3]
local mode, checked_marker, after_pos, maxlen = ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]

-- The marker may be missing, or have another type if another program wrote it. SET replaces it in both cases.
local stored = redis.pcall('GET', marker)
if type(stored) ~= 'string' then stored = '' end
local marker_pos = tonumber(string.match(stored, '^(%d+) ') or '0')
if marker_pos > after_pos and stored ~= checked_marker then return {0, 'marker', stored} end
if mode == 'ignore' then marker_pos = 0 end

local new_marker, processed_count, rejection = stored, 0, ''
local index = 7
while index <= #ARGV do
  local value_count = tonumber(ARGV[index + 2])
  if tonumber(ARGV[index]) > marker_pos then
    local added = redis.pcall(
      'XADD', stream, 'MAXLEN', '~', maxlen, '*', unpack(ARGV, index + 3, index + 2 + value_count)
    )
    if type(added) == 'table' and added.err then
      rejection = added.err
      break
    end
    new_marker = ARGV[index] .. ' ' .. ARGV[index + 1]
  end
  processed_count = processed_count + 1
  index = index + 3 + value_count
end
if new_marker ~= stored then redis.call('SET', marker, new_marker) end
return {1, processed_count, rejection}
