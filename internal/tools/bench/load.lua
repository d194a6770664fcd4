-- The requests of wrk: load.lua KIND PETS PATH KEYS
-- PETS is the highest id of a pet. PATH is a path, or @FILE with one path per line. For the kind "preferring" it is a Prefer header. KEYS is a file with one key per line.
-- Ids, paths and keys are random. Each thread has its own random seed.
local kind, pets, path, key, threads = nil, nil, nil, nil, 0
local began, sent = os.time(), 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

-- choice returns a function. It draws a line of @FILE, or a number up to the given number. For other text it returns the text.
local function choice(text)
  if text:sub(1, 1) == "@" then
    local lines = {}
    for line in io.lines(text:sub(2)) do lines[#lines + 1] = line end
    return function() return lines[math.random(#lines)] end
  end
  local most = tonumber(text)
  if most then return function() return math.random(most) end end
  return function() return text end
end

function init(args)
  kind, pets, path, key = args[1], choice(args[2]), choice(args[3]), choice("@" .. args[4])
  math.randomseed(os.time() * 1000 + number)
end

local function send(method, target, body, headers)
  headers = headers or {}
  headers.Authorization = "Bearer " .. key()
  if body then headers["Content-Type"] = "application/json" end
  return wrk.format(method, target, headers, body)
end

-- base returns the path of the URL of the server without a slash at its end.
local function base() return (wrk.path:gsub("/$", "")) end

local requests = {
  pet = function() return send("GET", "/pets/" .. pets()) end,
  petById = function() return send("GET", "/pets?id=" .. pets()) end,
  preferring = function() return send("GET", "/pets?id=" .. pets(), nil, { Prefer = path() }) end,
  path = function() return send("GET", path()) end,
  order = function() return send("POST", "/store/orders", '{"petId":' .. pets() .. ',"quantity":1}') end,
  keyed = function()
    sent = sent + 1
    return send("POST", "/store/orders", '{"petId":' .. pets() .. ',"quantity":1}', { ["Idempotency-Key"] = began .. "-" .. number .. "-" .. sent })
  end,
  sale = function() return send("POST", "/store/orders", '{"petId":1,"quantity":1}') end,
  swaggerPet = function() return send("GET", base() .. "/pet/" .. pets(), nil, { Accept = "application/json" }) end,
  swaggerOrder = function()
    return send("POST", base() .. "/store/order", '{"id":' .. math.random(1000) .. ',"petId":' .. pets() .. ',"quantity":1,"status":"placed","complete":false}', { Accept = "application/json" })
  end,
  create = function() return send("POST", "/pets", '{"name":"Bench ' .. math.random(1e9) .. '","categoryId":1}') end,
}

function request() return requests[kind]() end

function done(summary, latency)
  io.write(string.format('{"requests":%d,"microseconds":%d,"failed":%d,"p50Microseconds":%d,"p99Microseconds":%d}\n',
    summary.requests, summary.duration,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
