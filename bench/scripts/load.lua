-- What wrk sends, told by the environment: one request over and over, or one per path in turn, each with a number where
-- its body asks for one. They are made before the first is sent, so that the generator spends its time on sockets.

local paths = {}
for path in os.getenv("BENCH_PATHS"):gmatch("[^,]+") do
  paths[#paths + 1] = path
end

wrk.method = os.getenv("BENCH_METHOD")
wrk.path = paths[1]
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_TOKEN")
if os.getenv("BENCH_BODY") ~= "" then
  wrk.body = os.getenv("BENCH_BODY")
  wrk.headers["Content-Type"] = "application/json"
end

local mark = os.getenv("BENCH_NUMBER")
local numbered = wrk.body and wrk.body:find(mark, 1, true)
local digits = "%0" .. #mark .. "d"

if #paths > 1 or numbered then
  local made, rest, at, number = {}, {}, 0, 0

  function init()
    for i, path in ipairs(paths) do
      local whole = wrk.format(nil, path)
      local first, last = whole:find(mark, 1, true)
      made[i] = first and whole:sub(1, first - 1) or whole
      rest[i] = first and whole:sub(last + 1)
    end
  end

  function request()
    at = at % #made + 1
    if not rest[at] then
      return made[at]
    end
    number = number + 1
    return made[at] .. string.format(digits, number) .. rest[at]
  end
end

function done(summary, latency)
  local errors = summary.errors
  local lost = errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '\nBENCH {"count":%d,"seconds":%.6f,"refused":%d,"lost":%d,"p50_ms":%.3f,"p99_ms":%.3f}\n',
    summary.requests, summary.duration / 1e6, errors.status, lost,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3))
end
