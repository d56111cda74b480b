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
    changes/                                     how the changed elements of a version are coded
    serve/                                       the process that answers reads over a wire
    transport/{shm, ucx/, nixl/}                 bytes from an arena into a reader's arrays
    memory/                     registry/        arenas and their allocator; descriptors in Redis
    describe/                   plan/            descriptors, pieces; who is read for what (pure)
    layout/                                      boxes, placements, meshes (pure)

Only `publish.dtensor` knows torch. Nothing here unpickles, no tensor enters
Redis. Other programs import from here:

    from earl.dispatch import Dispatcher, Read, Registry, TensorSpec, TensorStore

What is named here is imported when it is first used: layouts and plans need numpy alone, `Registry` needs
redis.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from earl.dispatch.layout.box import Box, Layout, ShardBox
    from earl.dispatch.layout.mesh import MeshLayout
    from earl.dispatch.layout.placements import placement_boxes, shard_order
    from earl.dispatch.plan.class_plan import Want, plan_reads
    from earl.dispatch.plan.schedule import schedule
    from earl.dispatch.plan.sequence_plan import ContextSlice
    from earl.dispatch.publish.dtensor import local_box, local_boxes
    from earl.dispatch.publish.sequence_store import SequenceStore
    from earl.dispatch.publish.tensor_store import TensorSpec, TensorStore
    from earl.dispatch.read.cached_plan import Repeated, VersionRead
    from earl.dispatch.read.reader import Dispatcher, Receipt
    from earl.dispatch.read.resolve import Form, Read
    from earl.dispatch.read.resolve_sequences import SequenceRead
    from earl.dispatch.registry.registry import Registry

__all__ = [
    "Box",
    "ContextSlice",
    "Dispatcher",
    "Form",
    "Layout",
    "MeshLayout",
    "Read",
    "Receipt",
    "Registry",
    "Repeated",
    "SequenceRead",
    "SequenceStore",
    "ShardBox",
    "TensorSpec",
    "TensorStore",
    "VersionRead",
    "Want",
    "local_box",
    "local_boxes",
    "placement_boxes",
    "plan_reads",
    "schedule",
    "shard_order",
]

_LAZY = {
    "Box": "layout.box",
    "ContextSlice": "plan.sequence_plan",
    "Dispatcher": "read.reader",
    "Form": "read.resolve",
    "Layout": "layout.box",
    "MeshLayout": "layout.mesh",
    "Read": "read.resolve",
    "Receipt": "read.reader",
    "Registry": "registry.registry",
    "Repeated": "read.cached_plan",
    "SequenceRead": "read.resolve_sequences",
    "SequenceStore": "publish.sequence_store",
    "ShardBox": "layout.box",
    "TensorSpec": "publish.tensor_store",
    "TensorStore": "publish.tensor_store",
    "VersionRead": "read.cached_plan",
    "Want": "plan.class_plan",
    "local_box": "publish.dtensor",
    "local_boxes": "publish.dtensor",
    "placement_boxes": "layout.placements",
    "plan_reads": "plan.class_plan",
    "schedule": "plan.schedule",
    "shard_order": "layout.placements",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
