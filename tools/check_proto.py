"""Regenerates earl/v1 from proto/ and compares, or with --write replaces; every method must name its roles.

The stubs are committed so that an install needs no compiler; this check keeps them from drifting
away from their contracts. A method without `option (roles)` would be one that nobody may call. Exit
code 1 and the names of the files or methods if there are any.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("earl/v1")
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


DESCRIPTORS = "contracts.bin"


def generate(into: Path) -> None:
    """Runs protoc over every contract; raises SystemExit with its message if one is wrong."""
    contracts = ROOT / "proto"
    sources = sorted(str(path.relative_to(contracts)) for path in (contracts / PACKAGE).glob("*.proto"))
    options = [f"-I{contracts}", f"--python_out={into}", f"--pyi_out={into}", f"--grpc_python_out={into}"]
    options += ["--include_imports", f"--descriptor_set_out={into / DESCRIPTORS}"]
    command = [sys.executable, "-m", "grpc_tools.protoc", *options, *sources]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)


def without_roles(raw: bytes) -> list[str]:
    """Full names of the methods that name no role, of a serialised FileDescriptorSet."""
    files = descriptor_pb2.FileDescriptorSet.FromString(raw).file
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    roles: Any = pool.FindExtensionByName("earl.v1.roles")
    options = message_factory.GetMessageClass(pool.FindMessageTypeByName("google.protobuf.MethodOptions"))
    return [
        f"{file.package}.{service.name}/{method.name}"
        for file in files
        for service in file.service
        for method in service.method
        if not options.FromString(method.options.SerializeToString()).Extensions[roles]
    ]


def stubs(directory: Path) -> dict[str, bytes]:
    """Name and bytes of every generated file in a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name.endswith(SUFFIXES)}


def main() -> int:
    committed = ROOT / PACKAGE
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = stubs(Path(scratch) / PACKAGE)
        nobodys = without_roles((Path(scratch) / DESCRIPTORS).read_bytes())
    if nobodys:
        print(f"proto: nobody may call {', '.join(nobodys)}; add `option (roles)`, see common.proto")
        return 1
    have = stubs(committed)
    different = sorted(name for name in fresh.keys() | have.keys() if fresh.get(name) != have.get(name))
    if "--write" in sys.argv[1:]:
        for name in different:
            if name in fresh:
                (committed / name).write_bytes(fresh[name])
            else:
                (committed / name).unlink()
        print(f"proto: {len(fresh)} stubs, {len(different)} changed")
        return 0
    if different:
        print(f"proto: differ from proto/: {', '.join(different)}; run `make proto` and commit the result")
        return 1
    print(f"proto: {len(fresh)} stubs match proto/")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
