-- Stands before every script of a sink: the database's lease, as far as Redis can know of it.
--
-- KEYS[1]  the newest term that has written here, "<term> <holder>"
-- ARGV[1]  the caller's own; ARGV[2]  one that the caller has found to be of no lease of its database, or ''
--
-- Whoever was frozen while another took over is told so, and writes nothing, however late it wakes. A term that seems
-- newer because it is of another history, as after a restore, is answered too: the caller asks its database, and may then
-- overrule that very text. Answers {0, 'fence', what stands there} if the caller may not go on.
local own, overruled = ARGV[1], ARGV[2]
local newest = redis.pcall('GET', KEYS[1])
if type(newest) ~= 'string' then newest = '' end
if newest ~= own then
  local theirs, ours = tonumber(string.match(newest, '^(%d+) ') or '-1'), tonumber(string.match(own, '^(%d+) '))
  if theirs >= ours and newest ~= overruled then return {0, 'fence', newest} end
  redis.call('SET', KEYS[1], own)
end
