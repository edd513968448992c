-- Says how the whole of the keys stands: always, or only instead of what the caller has said before. Whoever wipes Redis
-- takes that away with the rest, so nobody says of a half that it is whole.
--
-- KEYS[2] where it is said; ARGV[3] what is to be said; [4] '1' if only instead of [5]. Answers {1, 1 if it was}.
local stands = redis.pcall('GET', KEYS[2])
if ARGV[4] == '1' and stands ~= ARGV[5] then return {1, 0} end
redis.call('SET', KEYS[2], ARGV[3])
return {1, 1}
