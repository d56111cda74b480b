"""Scripts that Redis runs in one step: they check who holds a key, and change it only then.

Each script gets the keys and a holder's mark as its first argument. A mark is 8 bytes of the owner's name and
8 of one life of it; it stands before a descriptor, and before the head of an owner's sequences.
"""

MARK_BYTES = 16
_NAME_BYTES = MARK_BYTES // 2

# lease in ms, whether to replace what others hold, a value for each key → numbers of keys that others hold
PUBLISH = f"""
local taken = {{}}
if ARGV[3] == '0' then
  for i, key in ipairs(KEYS) do
    local name = redis.call('GETRANGE', key, 0, {_NAME_BYTES - 1})
    if name ~= '' and name ~= string.sub(ARGV[1], 1, {_NAME_BYTES}) then taken[#taken + 1] = i - 1 end
  end
end
if #taken == 0 then
  for i, key in ipairs(KEYS) do redis.call('SET', key, ARGV[3 + i], 'PX', ARGV[2]) end
end
return taken
"""

# lease in ms → for each key 1: renewed, 0: nothing there, -1: another life or owner holds it
RENEW = f"""
local states = {{}}
for i, key in ipairs(KEYS) do
  local mark = redis.call('GETRANGE', key, 0, {MARK_BYTES - 1})
  if mark == '' then states[i] = 0
  elseif mark == ARGV[1] then states[i] = redis.call('PEXPIRE', key, ARGV[2])
  else states[i] = -1 end
end
return states
"""

RELEASE = f"""
for i, key in ipairs(KEYS) do
  if redis.call('GETRANGE', key, 0, {MARK_BYTES - 1}) == ARGV[1] then redis.call('UNLINK', key) end
end
return 0
"""

# lease in ms, head, name and record of each sequence → fields of the hash, or -1: another owner holds it
PUBLISH_RECORDS = f"""
local head = redis.call('HGET', KEYS[1], '')
if head and string.sub(head, 1, {MARK_BYTES}) ~= ARGV[1] then
  if string.sub(head, 1, {_NAME_BYTES}) ~= string.sub(ARGV[1], 1, {_NAME_BYTES}) then return -1 end
  redis.call('DEL', KEYS[1])
end
redis.call('HSET', KEYS[1], '', ARGV[1] .. ARGV[3])
for i = 4, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HLEN', KEYS[1])
"""

_HELD = f"""
local head = redis.call('HGET', KEYS[1], '')
if not head or string.sub(head, 1, {MARK_BYTES}) ~= ARGV[1] then return 0 end
"""

# lease in ms → fields of the hash, 0 where this life of the owner holds none
RENEW_RECORDS = f"""{_HELD}
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('HLEN', KEYS[1])
"""

# names of sequences
REMOVE_RECORDS = f"""{_HELD}
for i = 2, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
return 1
"""

RELEASE_RECORDS = f"""{_HELD}
return redis.call('UNLINK', KEYS[1])
"""
