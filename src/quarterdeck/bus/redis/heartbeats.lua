-- Writes heartbeats, which expire after 60 seconds, and updates the last heartbeat in the agent's status key. It does
-- not create a missing status key, since the agent may have ended in the meantime.
--
-- ARGV  for each heartbeat: agent name, heartbeat JSON, time, '1' if the current task is known, and that task or ''
for index = 1, #ARGV, 5 do
  local status_key = 'agent:status:' .. ARGV[index]
  redis.call('SETEX', 'agent:heartbeat:' .. ARGV[index], 60, ARGV[index + 1])
  if redis.call('TYPE', status_key).ok == 'hash' then
    redis.call('HSET', status_key, 'last_heartbeat', ARGV[index + 2])
    if ARGV[index + 3] == '1' then redis.call('HSET', status_key, 'current_task', ARGV[index + 4]) end
  end
end
return #ARGV / 5
