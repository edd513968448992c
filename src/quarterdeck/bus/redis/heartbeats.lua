-- Heartbeats: each is seen for a minute. Of an agent whose status is shown it shows when it was heard of; it makes no
-- status, since the agent may have ended meanwhile.
--
-- ARGV  for each: name, what is told of it, when it was heard of, '1' if it has said what it works on, and that task
for at = 1, #ARGV, 5 do
  local status = 'agent:status:' .. ARGV[at]
  redis.call('SETEX', 'agent:heartbeat:' .. ARGV[at], 60, ARGV[at + 1])
  if redis.call('TYPE', status).ok == 'hash' then
    redis.call('HSET', status, 'last_heartbeat', ARGV[at + 2])
    if ARGV[at + 3] == '1' then redis.call('HSET', status, 'current_task', ARGV[at + 4]) end
  end
end
return #ARGV / 5
