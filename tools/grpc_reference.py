"""The gRPC contracts as one page of Markdown, from proto/ and its comments: `python tools/grpc_reference.py`.

Services with their methods, who may call each, and what is audited; then every message and enum, by file.
Types are links to where they stand.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = Path(__file__).resolve().parent.parent
CONTRACTS = ROOT / "proto"
PACKAGE = "earl/v1"

HEAD = """# gRPC reference

The contracts between services, from `proto/earl/v1/`: whatever speaks gRPC can play sessions, serve
environments, look at a run or change its parallelism. Every method names the roles that may call it; what
roles and tokens are stands in [security.md](../security.md), the environment stream in words in
[environments.md](../environments.md#other-languages). Servers answer gRPC reflection and
`grpc.health.v1.Health` to every role; its `Check` is open.
"""

# Field numbers in descriptor.proto: by them a comment's place is told.
PACKAGE_NAME, SERVICES, MESSAGES, ENUMS = 2, 6, 4, 5
METHODS, FIELDS, NESTED, NESTED_ENUMS, VALUES = 2, 2, 3, 4, 2

Field = descriptor_pb2.FieldDescriptorProto
File = descriptor_pb2.FileDescriptorProto


def described() -> descriptor_pb2.FileDescriptorSet:
    """Descriptors of every contract, with their comments. Raises SystemExit with protoc's message."""
    sources = sorted(str(path.relative_to(CONTRACTS)) for path in (CONTRACTS / PACKAGE).glob("*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "contracts.bin"
        options = [
            f"-I{CONTRACTS}",
            "--include_imports",
            "--include_source_info",
            f"--descriptor_set_out={out}",
        ]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, *sources]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(done.stderr)
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


class Options:
    """Reads the options that common.proto adds to methods."""

    def __init__(self, descriptors: descriptor_pb2.FileDescriptorSet) -> None:
        pool = descriptor_pool.DescriptorPool()
        for file in descriptors.file:
            pool.Add(file)
        self._roles: Any = pool.FindExtensionByName("earl.v1.roles")
        self._audited: Any = pool.FindExtensionByName("earl.v1.audited")
        self._names = pool.FindEnumTypeByName("earl.v1.Role").values_by_number
        self._message = message_factory.GetMessageClass(
            pool.FindMessageTypeByName("google.protobuf.MethodOptions")
        )

    def of(self, method: descriptor_pb2.MethodDescriptorProto) -> tuple[list[str], bool]:
        """The roles that may call a method, and whether each call is audited."""
        set_here: Any = self._message.FromString(method.options.SerializeToString())
        numbers = set_here.Extensions[self._roles]
        roles = [self._names[number].name.removeprefix("ROLE_").lower() for number in numbers]
        return roles, set_here.Extensions[self._audited]


class Comments:
    """A file's comments, by the path of the declaration that each belongs to."""

    def __init__(self, file: File) -> None:
        self._comments = {
            tuple(place.path): place.leading_comments or place.trailing_comments
            for place in file.source_code_info.location
        }

    def of(self, *path: int) -> str:
        return " ".join(self._comments.get(path, "").split())


def page(descriptors: descriptor_pb2.FileDescriptorSet) -> str:
    """The whole page."""
    files = [file for file in descriptors.file if file.name.startswith(f"{PACKAGE}/")]
    options = Options(descriptors)
    lines = [HEAD, "## Services", ""]
    for file in files:
        lines += services(file, Comments(file), options)
    for file in files:
        comments = Comments(file)
        lines += [f"## {Path(file.name).name}", "", comments.of(PACKAGE_NAME), ""]
        for i, message in enumerate(file.message_type):
            lines += message_lines(message, message.name, comments, (MESSAGES, i))
        for i, enum in enumerate(file.enum_type):
            lines += enum_lines(enum, enum.name, comments, (ENUMS, i))
    return "\n".join(lines).rstrip() + "\n"


def services(file: File, comments: Comments, options: Options) -> Iterator[str]:
    for i, service in enumerate(file.service):
        yield from (f"### {service.name}", "", comments.of(SERVICES, i), "")
        yield from ("| method, request and response | | roles |", "|---|---|---|")
        for j, method in enumerate(service.method):
            roles, audited = options.of(method)
            notes = [comments.of(SERVICES, i, METHODS, j), "Audited." if audited else ""]
            asks = ("stream of " if method.client_streaming else "") + link(method.input_type)
            answers = ("stream of " if method.server_streaming else "") + link(method.output_type)
            yield row(
                f"`{method.name}`<br>{asks}<br>→ {answers}", " ".join(filter(None, notes)), ", ".join(roles)
            )
        yield ""


def message_lines(
    message: descriptor_pb2.DescriptorProto, name: str, comments: Comments, path: tuple[int, ...]
) -> Iterator[str]:
    """Lines of a message, then of the declarations inside it."""
    yield from (f"### {name}", "", comments.of(*path), "")
    maps = {nested.name: nested for nested in message.nested_type if nested.options.map_entry}
    if message.field:
        yield from ("| field | | type | |", "|---|---|---|---|")
        for i, field in enumerate(message.field):
            choice = field.HasField("oneof_index") and not field.proto3_optional
            one_of = f"one of `{message.oneof_decl[field.oneof_index].name}`" if choice else ""
            note = ". ".join(filter(None, [one_of, comments.of(*path, FIELDS, i)]))
            yield row(f"`{field.name}`", str(field.number), type_of(field, maps), note)
        yield ""
    for i, inner in enumerate(message.nested_type):
        if inner.name not in maps:
            yield from message_lines(inner, f"{name}.{inner.name}", comments, (*path, NESTED, i))
    for i, enum in enumerate(message.enum_type):
        yield from enum_lines(enum, f"{name}.{enum.name}", comments, (*path, NESTED_ENUMS, i))


def enum_lines(
    enum: descriptor_pb2.EnumDescriptorProto, name: str, comments: Comments, path: tuple[int, ...]
) -> Iterator[str]:
    yield from (f"### {name}", "", comments.of(*path), "", "| value | | |", "|---|---|---|")
    for i, value in enumerate(enum.value):
        yield row(f"`{value.name}`", str(value.number), comments.of(*path, VALUES, i))
    yield ""


def type_of(field: Field, maps: dict[str, descriptor_pb2.DescriptorProto]) -> str:
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        return f"map of {type_of(entry.field[0], {})} to {type_of(entry.field[1], {})}"
    named = (
        link(field.type_name)
        if field.type_name
        else Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    )
    if field.label == Field.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def link(type_name: str) -> str:
    """A type's name, linked to its heading."""
    name = type_name.removeprefix(".earl.v1.")
    if name == type_name:
        return f"`{type_name.removeprefix('.')}`"
    return f"[{name}](#{name.replace('.', '').lower()})"


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    print(page(described()), end="")
