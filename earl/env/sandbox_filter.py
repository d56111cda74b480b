"""The system calls that a sandboxed process may make, as a seccomp program for the kernel.

An allow-list: what is not on it, also calls that kernels yet to come will have, fails with EPERM. It
leaves what Python needs to compute, to use memory, files and threads and to tell the time. Not on it:
making processes and running programs, sockets (but for a connected pair, which asyncio wakes itself
with), signals to processes (also by way of fcntl's owner of a descriptor), tracing, mounts, namespaces,
keys, io_uring, bpf, perf, shared memory segments, other processes' limits. `program` is pure.

Numbers: Linux's asm/unistd_64.h and asm-generic/unistd.h. Encoding: linux/bpf_common.h, linux/seccomp.h.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

# AUDIT_ARCH_* of linux/audit.h; the column of TABLE.
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

# Name, number on x86_64, number on aarch64 ("-": it does not have this call).
READING = """
read 0 63 · write 1 64 · readv 19 65 · writev 20 66 · pread64 17 67 · pwrite64 18 68 · preadv 295 69
pwritev 296 70 · close 3 57 · close_range 436 436 · lseek 8 62 · stat 4 - · fstat 5 80 · lstat 6 -
newfstatat 262 79 · statx 332 291 · statfs 137 43 · fstatfs 138 44 · access 21 - · faccessat 269 48
faccessat2 439 439 · readlink 89 - · readlinkat 267 78 · getdents64 217 61 · getcwd 79 17 · chdir 80 49
fchdir 81 50 · umask 95 166 · fsync 74 82 · fdatasync 75 83 · flock 73 32 · sendfile 40 71
fadvise64 221 223 · dup 32 23 · dup2 33 - · dup3 292 24

mmap 9 222 · munmap 11 215 · mprotect 10 226 · mremap 25 216 · madvise 28 233 · brk 12 214

rt_sigaction 13 134 · rt_sigprocmask 14 135 · rt_sigreturn 15 139 · rt_sigpending 127 136
rt_sigsuspend 130 133 · rt_sigtimedwait 128 137 · sigaltstack 131 132 · pause 34 - · alarm 37 -
setitimer 38 103 · getitimer 36 102 · restart_syscall 219 128

futex 202 98 · set_robust_list 273 99 · set_tid_address 218 96 · rseq 334 293 · membarrier 324 283
sched_yield 24 124 · sched_getaffinity 204 123 · sched_getparam 143 121 · sched_getscheduler 145 120

nanosleep 35 101 · clock_nanosleep 230 115 · clock_gettime 228 113 · clock_getres 229 114
gettimeofday 96 169 · time 201 - · times 100 153

getpid 39 172 · getppid 110 173 · gettid 186 178 · getuid 102 174 · geteuid 107 175 · getgid 104 176
getegid 108 177 · getresuid 118 148 · getresgid 120 150 · getgroups 115 158 · getpgrp 111 -
getrlimit 97 163 · getrusage 98 165 · sysinfo 99 179 · uname 63 160 · getcpu 309 168
getrandom 318 278 · arch_prctl 158 - · exit 60 93 · exit_group 231 94

pipe 22 - · pipe2 293 59 · eventfd2 290 19 · timerfd_create 283 85 · timerfd_settime 286 86
timerfd_gettime 287 87 · select 23 - · pselect6 270 72 · poll 7 - · ppoll 271 73 · epoll_create1 291 20
epoll_ctl 233 21 · epoll_wait 232 - · epoll_pwait 281 22 · epoll_pwait2 441 441 · recvfrom 45 207
shutdown 48 210 · getsockname 51 204
"""
# Where there is a folder to write in: some of these change files that may only be read (Landlock has no
# rule for chmod or utime).
WRITING = """
open 2 - · openat 257 56 · mkdir 83 - · mkdirat 258 34 · rmdir 84 - · unlink 87 - · unlinkat 263 35
rename 82 - · renameat 264 38 · renameat2 316 276 · link 86 - · linkat 265 37 · symlink 88 -
symlinkat 266 36 · chmod 90 - · fchmod 91 52 · fchmodat 268 53 · utime 132 - · utimes 235 -
utimensat 280 88 · truncate 76 45 · ftruncate 77 46 · fallocate 285 47 · copy_file_range 326 285
"""


class Test(NamedTuple):
    """A test of half of an argument, masked: it is to be one of the values."""

    argument: int
    values: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    high: bool = False


# O_WRONLY, O_RDWR, O_CREAT, O_TRUNC.
_WRITES = 0x1 | 0x2 | 0x40 | 0x200
_CLONE_THREAD = 0x10000
Conditional = dict[str, tuple[tuple[int, int], tuple[Test, ...]]]
# Calls that are allowed if all their tests hold.
CONDITIONAL: Conditional = {
    # Descriptor flags, locks, duplicates; not F_SETOWN, F_SETOWN_EX or F_SETSIG, which send signals.
    "fcntl": ((72, 25), (Test(1, (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030)),)),
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX.
    "ioctl": ((16, 29), (Test(1, (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),)),
    # AF_UNIX, SOCK_STREAM: connected to each other for good.
    "socketpair": ((53, 199), (Test(0, (1,)), Test(1, (1,), mask=0xF))),
    # No address: only to the other end of a pair.
    "sendto": ((44, 206), (Test(4, (0,)), Test(4, (0,), high=True))),
    # PR_SET_NAME, PR_GET_NAME.
    "prctl": ((157, 167), (Test(0, (15, 16)),)),
    # The process's own.
    "prlimit64": ((302, 261), (Test(0, (0,)),)),
}
CONDITIONAL_IF_READ_ONLY: Conditional = {
    "open": ((2, -1), (Test(1, (0,), mask=_WRITES),)),
    "openat": ((257, 56), (Test(2, (0,), mask=_WRITES),)),
}
CONDITIONAL_IF_CONTAINED: Conditional = {
    "clone": ((56, 220), (Test(0, (_CLONE_THREAD,), mask=_CLONE_THREAD),)),
}
_CLONE3 = (435, 435)
_ENOSYS, _EPERM = 38, 1

_LOAD, _AND, _EQUAL, _RETURN = 0x20, 0x54, 0x15, 0x06
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# (code, how far to jump if true, if false, constant): struct sock_filter.
Instruction = tuple[int, int, int, int]


def _answer(value: int) -> Instruction:
    return (_RETURN, 0, 0, value)


def _rule(number: int, body: list[Instruction]) -> list[Instruction]:
    """`body`, which returns, for the system call of this number; the accumulator holds a call's number."""
    return [(_EQUAL, 0, len(body), number), *body]


def _conditions(tests: tuple[Test, ...]) -> list[Instruction]:
    """Allows if every test holds; little-endian machines."""
    instructions: list[Instruction] = []
    for test in tests:
        instructions.append((_LOAD, 0, 0, _ARGUMENTS + 8 * test.argument + 4 * test.high))
        instructions.append((_AND, 0, 0, test.mask))
        # A match jumps over the other values and the refusal behind them.
        left = len(test.values)
        instructions += [(_EQUAL, left - place, 0, value) for place, value in enumerate(test.values)]
        instructions.append(_answer(_ERRNO | _EPERM))
    return [*instructions, _answer(_ALLOW)]


def calls(architecture: str, table: str) -> dict[str, int]:
    """Name → number on this architecture."""
    column = ARCHITECTURES[architecture][1]
    rows = [entry.split() for line in table.splitlines() for entry in line.split("·") if entry.strip()]
    return {name: int(numbers[column]) for name, *numbers in rows if numbers[column] != "-"}


def program(architecture: str, *, contained: bool) -> bytes:
    """The filter, an array of struct sock_filter. KeyError for an architecture not in ARCHITECTURES.

    contained: whether the process has a folder and a count of threads of its own, that are bounded; if
    not, it may neither write files nor start threads.
    """
    audit, column = ARCHITECTURES[architecture]
    instructions: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, audit),
        _answer(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in calls(architecture, READING + WRITING if contained else READING).values():
        instructions += _rule(number, [_answer(_ALLOW)])
    conditional = CONDITIONAL | (CONDITIONAL_IF_CONTAINED if contained else CONDITIONAL_IF_READ_ONLY)
    for numbers, tests in conditional.values():
        if numbers[column] >= 0:
            instructions += _rule(numbers[column], _conditions(tests))
    # clone3's arguments lie in memory, where a filter cannot look; the C library then takes clone.
    instructions += _rule(_CLONE3[column], [_answer(_ERRNO | _ENOSYS)])
    instructions.append(_answer(_ERRNO | _EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)
