-- The first part of every script that only the lease holder of a sink may run. It compares the caller's term with the
-- term of the newest holder that has written.
--
-- KEYS[1]  the term of the newest holder that has written, "<term> <holder>"
-- ARGV[1]  the caller's term; ARGV[2]  a stored term that belongs to no lease of the caller's database, or ''
--
-- A process that was paused while another one took over writes nothing, however late it resumes. After a restore, the
-- stored term may come from a different database and only seem newer. The caller then checks its own database and may
-- pass the stored text as ARGV[2]. Returns {0, 'fence', the stored term} if the caller must not continue.
local own, ignored = ARGV[1], ARGV[2]
local newest = redis.pcall('GET', KEYS[1])
if type(newest) ~= 'string' then newest = '' end
if newest ~= own then
  local newest_term = tonumber(string.match(newest, '^(%d+) ') or '-1')
  local own_term = tonumber(string.match(own, '^(%d+) '))
  if newest_term >= own_term and newest ~= ignored then return {0, 'fence', newest} end
  redis.call('SET', KEYS[1], own)
end
