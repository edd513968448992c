-- Writes heartbeats, each for 60 seconds, and updates the last heartbeat in the agent's status key. It does not create
-- that key, since the agent may have ended meanwhile.
--
-- ARGV  for each heartbeat: agent name, heartbeat JSON, time, '1' if the current task is known, and that task or ''
for at = 1, #ARGV, 5 do
  local status = 'agent:status:' .. ARGV[at]
  redis.call('SETEX', 'agent:heartbeat:' .. ARGV[at], 60, ARGV[at + 1])
  if redis.call('TYPE', status).ok == 'hash' then
    redis.call('HSET', status, 'last_heartbeat', ARGV[at + 2])
    if ARGV[at + 3] == '1' then redis.call('HSET', status, 'current_task', ARGV[at + 4]) end
  end
end
return #ARGV / 5
