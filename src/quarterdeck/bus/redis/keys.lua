-- Makes the keys match the given rows, or only counts the differences.
--
-- KEYS[2]  the key that holds the state of the mirror (see `complete_marker.lua`); not used here
-- ARGV[3]  'write' or 'compare'; then for each operation: its kind, the number of values, the values
--
--   task    zone, id, score or '', agent name or '', session key, assigned at, started at, '1' if it is waiting for its
--           backoff to end, agent id, '1' if it has just changed
--   agent   name, status or '', current task, last heartbeat, '1' if it is stale, '1' if it has just changed or sent a
--           heartbeat
--   remove  key, type or '', member, '1' if its task or agent has just changed
--
-- A key of the wrong type counts as a difference and is replaced. Returns {1, the number of differences}. Differences
-- from rows that have just changed are not counted: another writer may be about to write those rows.
local is_write = ARGV[3] == 'write'
local RECOVERY_MAX, CONTEXT_SECONDS = 1000, 3600
local difference_count, weight = 0, 1
local types = {}

local function fix(command, ...)
  difference_count = difference_count + weight
  if is_write then redis.call(command, ...) end
end

local function has_type(key, expected_type)
  local stored_type = types[key]
  if stored_type == nil then
    stored_type = redis.call('TYPE', key).ok
    if stored_type ~= 'none' and stored_type ~= expected_type then
      fix('DEL', key)
      stored_type = 'none'
    end
    types[key] = stored_type
  end
  return stored_type == expected_type
end

local function write(key, redis_type, command, ...)
  fix(command, key, ...)
  if is_write then types[key] = redis_type end
end

local function sync_set(key, member, expected)
  local stored = has_type(key, 'set') and redis.call('SISMEMBER', key, member) == 1
  if expected and not stored then write(key, 'set', 'SADD', member) end
  if stored and not expected then fix('SREM', key, member) end
end

local function sync_hash(key, field, value)
  local stored = has_type(key, 'hash') and redis.call('HGET', key, field)
  if value and stored ~= value then write(key, 'hash', 'HSET', field, value) end
  if stored and not value then fix('HDEL', key, field) end
end

local function sync_zset(key, member, score)
  local stored = has_type(key, 'zset') and redis.call('ZSCORE', key, member)
  if score and (not stored or tonumber(stored) ~= tonumber(score)) then write(key, 'zset', 'ZADD', score, member) end
  if stored and not score then fix('ZREM', key, member) end
end

local function sync_list(key, member, expected)
  local stored = has_type(key, 'list') and redis.call('LPOS', key, member)
  local is_full = has_type(key, 'list') and redis.call('LLEN', key) >= RECOVERY_MAX
  if expected and not stored and not is_full then write(key, 'list', 'LPUSH', member) end
  if stored and not expected then fix('LREM', key, 0, member) end
end

local function non_empty(text) return text ~= '' and text end

-- If a session holds several tasks, the key shows one of them until the session no longer holds that task.
local function sync_context(zone, id, agent_id, session, started, holders)
  local key = 'session:context:' .. session
  local shown = has_type(key, 'hash') and redis.call('HMGET', key, 'workspace_id', 'task_id', 'agent_id')
  local matches = shown and shown[1] == zone and shown[2] and shown[3]
  if matches and shown[2] ~= id then
    local other = has_type(holders, 'hash') and redis.call('HGET', holders, shown[2])
    matches = other and string.match(other, '^%S* (.*)$') == session
  elseif matches then
    matches = shown[3] == agent_id
  end
  if not matches then
    write(key, 'hash', 'HSET', 'workspace_id', zone, 'agent_id', agent_id, 'task_id', id, 'started_at', started)
  end
  -- A comparison also renews the key, which must not expire while the attempt is running.
  redis.call('EXPIRE', key, CONTEXT_SECONDS)
end

local function sync_task(v)
  local zone, id, agent, session = v[1], v[2], non_empty(v[4]), v[5]
  local holders, active = 'quarterdeck:keys-holders:' .. zone, 'tasks:active:' .. zone
  local holder = agent and (agent .. ' ' .. session)
  weight = v[10] == '1' and 0 or 1
  sync_zset('tasks:pending:' .. zone, id, non_empty(v[3]))
  sync_list('coordinator:recovery_queue:' .. zone, id, v[8] == '1')
  local stored_holder = has_type(holders, 'hash') and redis.call('HGET', holders, id)
  if stored_holder and stored_holder ~= holder then
    local old_agent, old_session = string.match(stored_holder, '^(%S*) (.*)$')
    if old_agent then
      sync_hash('agent:tasks:' .. old_agent, id, false)
      sync_set(active, id .. ':' .. old_session, false)
    end
  end
  sync_hash(holders, id, holder)
  if agent then
    sync_hash('agent:tasks:' .. agent, id, v[6])
    sync_set(active, id .. ':' .. session, true)
    if session ~= '' then sync_context(zone, id, v[9], session, v[7], holders) end
  end
end

local function sync_agent(v)
  local name, status = v[1], non_empty(v[2])
  local key = 'agent:status:' .. name
  weight = v[6] == '1' and 0 or 1
  sync_zset('coordinator:stale_agents', name, v[5] == '1' and v[4])
  if not status then
    for _, obsolete in ipairs({key, 'agent:heartbeat:' .. name, 'agent:tasks:' .. name}) do
      if redis.call('EXISTS', obsolete) == 1 then
        fix('DEL', obsolete)
        types[obsolete] = nil
      end
    end
    return
  end
  sync_hash(key, 'status', status)
  sync_hash(key, 'current_task', v[3])
  sync_hash(key, 'last_heartbeat', v[4])
end

local REMOVE = {set = 'SREM', hash = 'HDEL', zset = 'ZREM'}
local function remove(v)
  local key, redis_type, member = v[1], v[2], v[3]
  weight = v[4] == '1' and 0 or 1
  if redis_type == '' then
    if redis.call('EXISTS', key) == 1 then fix('DEL', key) end
  elseif has_type(key, redis_type) then
    if redis_type == 'list' then fix('LREM', key, 0, member) else fix(REMOVE[redis_type], key, member) end
  end
end

local handlers = {task = sync_task, agent = sync_agent, remove = remove}
local index = 4
while index <= #ARGV do
  local value_count = tonumber(ARGV[index + 1])
  local args = {}
  for n = 1, value_count do args[n] = ARGV[index + 1 + n] end
  handlers[ARGV[index]](args)
  index = index + 2 + value_count
end
return {1, difference_count}
