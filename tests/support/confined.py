"""Runs codes in a Sandbox of a process that is itself confined: `python -m tests.support.confined HOW`.

HOW: "container" (namespaces and mounts are refused, as container runtimes refuse them), "bare" (Landlock
too), "user" (a user id other than root's, without capabilities). Codes come as a JSON list on stdin,
and go to stdout as a list of {output, end, layers}, or {"refused": message}.
"""

import ctypes
import json
import os
import struct
import sys

from earl.env.sandbox import Sandbox, SandboxLimits
from earl.errors import SandboxUnavailable

LIBC = ctypes.CDLL(None, use_errno=True)
# x86_64: unshare, mount, pivot_root, setns, mount_setattr; aarch64's.
NAMESPACES = {"x86_64": (272, 165, 155, 308, 442), "aarch64": (97, 40, 41, 268, 442)}
LANDLOCK = (444, 445, 446)


def deny(numbers):
    """Makes these system calls fail with EPERM."""
    program = [(0x20, 0, 0, 0)]
    for number in numbers:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, 0x00050001)]
    program.append((0x06, 0, 0, 0x7FFF0000))
    encoded = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]

    assert LIBC.prctl(38, 1, 0, 0, 0) == 0
    assert LIBC.prctl(22, 2, ctypes.byref(Program(len(program), encoded)), 0, 0) == 0


def become_user():
    """Uid 1000 in a user namespace; no capabilities are left."""
    user = os.geteuid()
    assert LIBC.unshare(0x10000000) == 0
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {user} 1"), ("gid_map", f"1000 {user} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    capset = {"x86_64": 126, "aarch64": 91}[os.uname().machine]
    assert LIBC.syscall(capset, (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0


def main():
    how = sys.argv[1]
    if how == "user":
        become_user()
    else:
        names = NAMESPACES[os.uname().machine]
        deny(names if how == "container" else names + LANDLOCK)
    sandbox = Sandbox(SandboxLimits(wall_s=10.0))
    results = []
    for code in json.load(sys.stdin):
        try:
            run = sandbox.run(code)
            results.append({"output": run.output, "end": run.end.name, "layers": run.layers})
        except SandboxUnavailable as refused:
            results.append({"refused": str(refused)})
    print(json.dumps(results))


if __name__ == "__main__":
    main()
