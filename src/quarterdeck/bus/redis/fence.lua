-- The start of every script of a sink: checks the caller's term of the lease against the newest term that wrote here.
--
-- KEYS[1]  the newest term that has written here, "<term> <holder>"
-- ARGV[1]  the caller's own; ARGV[2]  a term that the caller has found to belong to no lease of its database, or ''
--
-- A process that was frozen while another took over writes nothing, however late it resumes. A term may also seem newer
-- because it belongs to another history, as after a restore: the caller then checks its database and may pass that
-- exact text as ARGV[2]. Returns {0, 'fence', the stored term} if the caller must not continue.
local own, ignored = ARGV[1], ARGV[2]
local newest = redis.pcall('GET', KEYS[1])
if type(newest) ~= 'string' then newest = '' end
if newest ~= own then
  local newest_term = tonumber(string.match(newest, '^(%d+) ') or '-1')
  local own_term = tonumber(string.match(own, '^(%d+) '))
  if newest_term >= own_term and newest ~= ignored then return {0, 'fence', newest} end
  redis.call('SET', KEYS[1], own)
end
