"""The data plane: tensors described by layouts, held in arenas, read directly by whoever needs them.

```
 owner                                                reader
 TensorStore ─ region of an Arena ◄── shm: mapped ─── Dispatcher.read(keys, name, box, into)
      │              ▲                                     │  plan(layout, box) → copies
      │              └── serving process ◄── ucx wire ─────┤
      └── descriptor ──► Registry (Redis, lease) ──────────┘
```
`layout`, `plan` and `allocator` are pure. Nothing here ever unpickles, and no tensor enters Redis.
"""
