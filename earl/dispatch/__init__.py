"""The data plane: tensors described by layouts, held in arenas, read directly by whoever needs them.

```
 owner                                                reader
 TensorStore ─ region of an Arena ◄── shm: mapped ─── Dispatcher.read(keys, name, box, into)
      │              ▲                                     │  plan(layout, box) → copies
      │              └── serving process ◄── ucx, nixl ────┤
      └── descriptor ──► Registry (Redis, lease) ──────────┘
```
What is pure: `layout` (boxes) and `plan` (any boxes, one tensor); for what is large, `placements` and
`mesh` (DTensor's cuts), `classes` (tensors that lie alike), `blocks` (their plan as arrays), `ragged` (packed
sequences), `balance` (replicas), `schedule` (order, credits); `pieces` (what transports are asked for); and
`allocator`. `resolve`, `resolve_classes` and `repeated` lead from reads and descriptors to pieces. Only
`dtensor` and `device_arena` know torch. Nothing here ever unpickles, and no tensor enters Redis.
"""
