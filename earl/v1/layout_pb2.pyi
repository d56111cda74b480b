from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Dtype(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[Dtype]
    DTYPE_UINT8: _ClassVar[Dtype]
    DTYPE_INT32: _ClassVar[Dtype]
    DTYPE_INT64: _ClassVar[Dtype]
    DTYPE_FLOAT32: _ClassVar[Dtype]
    DTYPE_FLOAT16: _ClassVar[Dtype]
    DTYPE_BFLOAT16: _ClassVar[Dtype]
    DTYPE_INT8: _ClassVar[Dtype]
    DTYPE_BOOL: _ClassVar[Dtype]
    DTYPE_FLOAT64: _ClassVar[Dtype]

class PlacementKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACEMENT_KIND_UNSPECIFIED: _ClassVar[PlacementKind]
    PLACEMENT_KIND_REPLICATE: _ClassVar[PlacementKind]
    PLACEMENT_KIND_SHARD: _ClassVar[PlacementKind]
    PLACEMENT_KIND_STRIDED_SHARD: _ClassVar[PlacementKind]
    PLACEMENT_KIND_ZIGZAG: _ClassVar[PlacementKind]
DTYPE_UNSPECIFIED: Dtype
DTYPE_UINT8: Dtype
DTYPE_INT32: Dtype
DTYPE_INT64: Dtype
DTYPE_FLOAT32: Dtype
DTYPE_FLOAT16: Dtype
DTYPE_BFLOAT16: Dtype
DTYPE_INT8: Dtype
DTYPE_BOOL: Dtype
DTYPE_FLOAT64: Dtype
PLACEMENT_KIND_UNSPECIFIED: PlacementKind
PLACEMENT_KIND_REPLICATE: PlacementKind
PLACEMENT_KIND_SHARD: PlacementKind
PLACEMENT_KIND_STRIDED_SHARD: PlacementKind
PLACEMENT_KIND_ZIGZAG: PlacementKind

class Box(_message.Message):
    __slots__ = ("start", "stop")
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    start: _containers.RepeatedScalarFieldContainer[int]
    stop: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, start: _Optional[_Iterable[int]] = ..., stop: _Optional[_Iterable[int]] = ...) -> None: ...

class ArenaRef(_message.Message):
    __slots__ = ("owner", "incarnation", "path", "nonce", "size_bytes", "ucx_address", "device", "host", "nixl_address", "file_system")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    UCX_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    NIXL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FILE_SYSTEM_FIELD_NUMBER: _ClassVar[int]
    owner: str
    incarnation: int
    path: str
    nonce: int
    size_bytes: int
    ucx_address: str
    device: str
    host: str
    nixl_address: str
    file_system: int
    def __init__(self, owner: _Optional[str] = ..., incarnation: _Optional[int] = ..., path: _Optional[str] = ..., nonce: _Optional[int] = ..., size_bytes: _Optional[int] = ..., ucx_address: _Optional[str] = ..., device: _Optional[str] = ..., host: _Optional[str] = ..., nixl_address: _Optional[str] = ..., file_system: _Optional[int] = ...) -> None: ...

class Region(_message.Message):
    __slots__ = ("arena", "offset_bytes", "size_bytes", "generation", "slot", "checksums", "checksum_block_bytes")
    ARENA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    arena: int
    offset_bytes: int
    size_bytes: int
    generation: int
    slot: int
    checksums: _containers.RepeatedScalarFieldContainer[int]
    checksum_block_bytes: int
    def __init__(self, arena: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., size_bytes: _Optional[int] = ..., generation: _Optional[int] = ..., slot: _Optional[int] = ..., checksums: _Optional[_Iterable[int]] = ..., checksum_block_bytes: _Optional[int] = ...) -> None: ...

class Shard(_message.Message):
    __slots__ = ("box", "region", "offset_bytes", "strides_bytes")
    BOX_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    STRIDES_BYTES_FIELD_NUMBER: _ClassVar[int]
    box: Box
    region: int
    offset_bytes: int
    strides_bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, box: _Optional[_Union[Box, _Mapping]] = ..., region: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., strides_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class TensorLayout(_message.Message):
    __slots__ = ("name", "dtype", "shape", "shards")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("kind", "dim", "split")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    kind: PlacementKind
    dim: int
    split: int
    def __init__(self, kind: _Optional[_Union[PlacementKind, str]] = ..., dim: _Optional[int] = ..., split: _Optional[int] = ...) -> None: ...

class TensorClass(_message.Message):
    __slots__ = ("template", "dtype", "shape", "stack", "mesh_shape", "placements", "rank", "region", "offset_bytes", "tensor_bytes")
    TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STACK_FIELD_NUMBER: _ClassVar[int]
    MESH_SHAPE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_BYTES_FIELD_NUMBER: _ClassVar[int]
    template: str
    dtype: Dtype
    shape: _containers.RepeatedScalarFieldContainer[int]
    stack: int
    mesh_shape: _containers.RepeatedScalarFieldContainer[int]
    placements: _containers.RepeatedCompositeFieldContainer[Placement]
    rank: int
    region: int
    offset_bytes: int
    tensor_bytes: int
    def __init__(self, template: _Optional[str] = ..., dtype: _Optional[_Union[Dtype, str]] = ..., shape: _Optional[_Iterable[int]] = ..., stack: _Optional[int] = ..., mesh_shape: _Optional[_Iterable[int]] = ..., placements: _Optional[_Iterable[_Union[Placement, _Mapping]]] = ..., rank: _Optional[int] = ..., region: _Optional[int] = ..., offset_bytes: _Optional[int] = ..., tensor_bytes: _Optional[int] = ...) -> None: ...

class LayoutDescriptor(_message.Message):
    __slots__ = ("key", "version", "arenas", "regions", "tensors", "classes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ARENAS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    key: str
    version: int
    arenas: _containers.RepeatedCompositeFieldContainer[ArenaRef]
    regions: _containers.RepeatedCompositeFieldContainer[Region]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorLayout]
    classes: _containers.RepeatedCompositeFieldContainer[TensorClass]
    def __init__(self, key: _Optional[str] = ..., version: _Optional[int] = ..., arenas: _Optional[_Iterable[_Union[ArenaRef, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[Region, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TensorLayout, _Mapping]]] = ..., classes: _Optional[_Iterable[_Union[TensorClass, _Mapping]]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "dtype")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: Dtype
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[Dtype, str]] = ...) -> None: ...

class SequenceHead(_message.Message):
    __slots__ = ("arena", "columns", "checksum_block_bytes")
    ARENA_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    arena: ArenaRef
    columns: _containers.RepeatedCompositeFieldContainer[Column]
    checksum_block_bytes: int
    def __init__(self, arena: _Optional[_Union[ArenaRef, _Mapping]] = ..., columns: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., checksum_block_bytes: _Optional[int] = ...) -> None: ...
