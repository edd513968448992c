-- Has keys as rows say that they are to be, or only counts where they are not.
--
-- KEYS[2]  where it is said that the whole was written
-- ARGV[3]  'write' or 'look'; then, one after the other: what it is, how many values follow, the values
--
--   task    zone, id, score or '', agent's name or '', session key, given at, begun at, '1' if it waits for a backoff,
--           agent's id, '1' if it has changed a moment ago
--   agent   name, status or '', current task, last heartbeat, '1' if it is stale, '1' if it was heard of a moment ago
--   strike  key, type or '', member, '1' if what it was of has changed a moment ago
--
-- A key that holds something of another type holds nothing that is right: it goes. Answers {1, how much was wrong}; what
-- has changed a moment ago is written, and not counted: whoever tells of it may be under way.
local writes = ARGV[3] == 'write'
local RECOVERY_MAX, CONTEXT_SECONDS = 1000, 3600
local wrong, weight = 0, 1
local kinds = {}

local function differs(command, ...)
  wrong = wrong + weight
  if writes then redis.call(command, ...) end
end

local function holds(key, kind)
  local found = kinds[key]
  if found == nil then
    found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= kind then
      differs('DEL', key)
      found = 'none'
    end
    kinds[key] = found
  end
  return found == kind
end

local function put(key, kind, command, ...)
  differs(command, key, ...)
  if writes then kinds[key] = kind end
end

local function in_set(key, member, wanted)
  local there = holds(key, 'set') and redis.call('SISMEMBER', key, member) == 1
  if wanted and not there then put(key, 'set', 'SADD', member) end
  if there and not wanted then differs('SREM', key, member) end
end

local function in_hash(key, field, value)
  local there = holds(key, 'hash') and redis.call('HGET', key, field)
  if value and there ~= value then put(key, 'hash', 'HSET', field, value) end
  if there and not value then differs('HDEL', key, field) end
end

local function in_zset(key, member, score)
  local there = holds(key, 'zset') and redis.call('ZSCORE', key, member)
  if score and (not there or tonumber(there) ~= tonumber(score)) then put(key, 'zset', 'ZADD', score, member) end
  if there and not score then differs('ZREM', key, member) end
end

local function in_list(key, member, wanted)
  local there = holds(key, 'list') and redis.call('LPOS', key, member)
  local full = holds(key, 'list') and redis.call('LLEN', key) >= RECOVERY_MAX
  if wanted and not there and not full then put(key, 'list', 'LPUSH', member) end
  if there and not wanted then differs('LREM', key, 0, member) end
end

local function some(text) return text ~= '' and text end

-- Of a session that holds several tasks one is shown, as long as it holds that one.
local function context(zone, id, agent_id, session, began, holders)
  local key = 'session:context:' .. session
  local shown = holds(key, 'hash') and redis.call('HMGET', key, 'workspace_id', 'task_id', 'agent_id')
  local right = shown and shown[1] == zone and shown[2] and shown[3]
  if right and shown[2] ~= id then
    local other = holds(holders, 'hash') and redis.call('HGET', holders, shown[2])
    right = other and string.match(other, '^%S* (.*)$') == session
  elseif right then
    right = shown[3] == agent_id
  end
  if not right then
    put(key, 'hash', 'HSET', 'workspace_id', zone, 'agent_id', agent_id, 'task_id', id, 'started_at', began)
  end
  -- Its hour begins anew as long as the attempt runs.
  redis.call('EXPIRE', key, CONTEXT_SECONDS)
end

local function task(v)
  local zone, id, agent, session = v[1], v[2], some(v[4]), v[5]
  local holders, active = 'quarterdeck:keys-holders:' .. zone, 'tasks:active:' .. zone
  local holder = agent and (agent .. ' ' .. session)
  weight = v[10] == '1' and 0 or 1
  in_zset('tasks:pending:' .. zone, id, some(v[3]))
  in_list('coordinator:recovery_queue:' .. zone, id, v[8] == '1')
  local known = holds(holders, 'hash') and redis.call('HGET', holders, id)
  if known and known ~= holder then
    local before, its_session = string.match(known, '^(%S*) (.*)$')
    if before then
      in_hash('agent:tasks:' .. before, id, false)
      in_set(active, id .. ':' .. its_session, false)
    end
  end
  in_hash(holders, id, holder)
  if agent then
    in_hash('agent:tasks:' .. agent, id, v[6])
    in_set(active, id .. ':' .. session, true)
    if session ~= '' then context(zone, id, v[9], session, v[7], holders) end
  end
end

local function agent(v)
  local name, status = v[1], some(v[2])
  local key = 'agent:status:' .. name
  weight = v[6] == '1' and 0 or 1
  in_zset('coordinator:stale_agents', name, v[5] == '1' and v[4])
  if not status then
    for _, gone in ipairs({key, 'agent:heartbeat:' .. name, 'agent:tasks:' .. name}) do
      if redis.call('EXISTS', gone) == 1 then
        differs('DEL', gone)
        kinds[gone] = nil
      end
    end
    return
  end
  in_hash(key, 'status', status)
  in_hash(key, 'current_task', v[3])
  in_hash(key, 'last_heartbeat', v[4])
end

local REMOVE = {set = 'SREM', hash = 'HDEL', zset = 'ZREM'}
local function strike(v)
  local key, kind, member = v[1], v[2], v[3]
  weight = v[4] == '1' and 0 or 1
  if kind == '' then
    if redis.call('EXISTS', key) == 1 then differs('DEL', key) end
  elseif holds(key, kind) then
    if kind == 'list' then differs('LREM', key, 0, member) else differs(REMOVE[kind], key, member) end
  end
end

local known = {task = task, agent = agent, strike = strike}
local at = 4
while at <= #ARGV do
  local values = tonumber(ARGV[at + 1])
  local given = {}
  for n = 1, values do given[n] = ARGV[at + 1 + n] end
  known[ARGV[at]](given)
  at = at + 2 + values
end
return {1, wrong}
