-- Builds wrk's requests from environment variables: one request repeated, or one per path in turn, with a number in
-- place of the placeholder in the body. All are built before the first is sent, so that wrk spends its time on sockets.

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

local placeholder = os.getenv("BENCH_NUMBER")
local is_numbered = wrk.body and wrk.body:find(placeholder, 1, true)
local digits = "%0" .. #placeholder .. "d"

if #paths > 1 or is_numbered then
  local prefixes, suffixes, index, number = {}, {}, 0, 0

  function init()
    for i, path in ipairs(paths) do
      local request_text = wrk.format(nil, path)
      local first, last = request_text:find(placeholder, 1, true)
      prefixes[i] = first and request_text:sub(1, first - 1) or request_text
      suffixes[i] = first and request_text:sub(last + 1)
    end
  end

  function request()
    index = index % #prefixes + 1
    if not suffixes[index] then
      return prefixes[index]
    end
    number = number + 1
    return prefixes[index] .. string.format(digits, number) .. suffixes[index]
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
