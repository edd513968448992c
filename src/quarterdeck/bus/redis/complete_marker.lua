-- Writes the state of the mirror, either always or only if the stored state has the expected value. Wiping Redis
-- deletes the state together with the mirrored keys, so incomplete keys are never marked as complete.
--
-- KEYS[2]  the key that holds the state
-- ARGV[3]  the new state; [4] '1' to write only if the stored state is [5]
--
-- Returns {1, 1} if the state was written, otherwise {1, 0}.
local stored = redis.pcall('GET', KEYS[2])
if ARGV[4] == '1' and stored ~= ARGV[5] then return {1, 0} end
redis.call('SET', KEYS[2], ARGV[3])
return {1, 1}
