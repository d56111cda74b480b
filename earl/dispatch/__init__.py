"""The data plane: tensors described by layouts, held in arenas, read directly by their consumers.

```
 owner                                                reader
 TensorStore ─ region of an Arena ◄── shm: mapped ─── Dispatcher.read(keys, name, box, into)
      │              ▲                                     │  plan(layout, box) → copies
      │              └── serving process ◄── ucx, nixl ────┤
      └── descriptor ──► Registry (Redis, lease) ──────────┘
```
A folder imports those below it, never one above:

    publish/                    read/            what an owner makes known; what a reader asks for
    serve/                                       the process that answers reads over a wire
    transport/{shm, ucx/, nixl/}                 bytes from an arena into a reader's arrays
    memory/                     registry/        arenas and their allocator; descriptors in Redis
    describe/                   plan/            descriptors, pieces; who is read for what (pure)
    layout/                                      boxes, placements, meshes (pure)

Only `publish.dtensor` knows torch. Nothing here unpickles, no tensor enters
Redis.
"""
