-- What wrk sends: load.lua KIND PETS HOT_PET PATH KEY...
-- Ids and keys are random; each thread has a seed of its own.
local kind, pets, hot, path, keys, threads = nil, 0, 0, "", {}, 0

function setup(thread)
  threads = threads + 1
  thread:set("number", threads)
end

function init(args)
  kind, pets, hot, path = args[1], tonumber(args[2]), tonumber(args[3]), args[4]
  for i = 5, #args do keys[#keys + 1] = args[i] end
  math.randomseed(os.time() * 1000 + number)
end

local function send(method, target, body)
  local headers = { Authorization = "Bearer " .. keys[math.random(#keys)] }
  if body then headers["Content-Type"] = "application/json" end
  return wrk.format(method, target, headers, body)
end

local requests = {
  pet = function() return send("GET", "/pets/" .. math.random(pets)) end,
  batch = function() return send("GET", "/pets?id=" .. math.random(pets)) end,
  path = function() return send("GET", path) end,
  order = function() return send("POST", "/store/orders", '{"petId":' .. math.random(pets) .. ',"quantity":1}') end,
  sale = function() return send("POST", "/store/orders", '{"petId":' .. hot .. ',"quantity":1}') end,
  create = function() return send("POST", "/pets", '{"name":"Bench ' .. math.random(1e9) .. '","categoryId":1}') end,
}

function request() return requests[kind]() end

function done(summary, latency)
  io.write(string.format('{"requests":%d,"microseconds":%d,"failed":%d,"p99Microseconds":%d}\n',
    summary.requests, summary.duration,
    summary.errors.status + summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout,
    latency:percentile(99)))
end
