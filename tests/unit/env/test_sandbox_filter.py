"""The sandbox's list of system calls, as the kernel would read it, for both architectures."""

import struct

import pytest

from earl.env.sandbox_filter import (
    ARCHITECTURES,
    CONDITIONAL,
    CONDITIONAL_IF_CONTAINED,
    READING,
    WRITING,
    calls,
    program,
)

ALLOW, NOT_PERMITTED, NOT_IMPLEMENTED, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(filter_: bytes, audit: int, number: int, *arguments: int) -> int:
    """Runs the four instructions that the filter is made of on a struct seccomp_data."""
    data = struct.pack("=IIQ6Q", number, audit, 0, *(arguments + (0,) * 6)[:6])
    code = [struct.unpack_from("=HBBI", filter_, at) for at in range(0, len(filter_), 8)]
    place = accumulator = 0
    while True:
        what, if_true, if_false, constant = code[place]
        place += 1
        if what == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, constant)
        elif what == 0x54:
            accumulator &= constant
        elif what == 0x15:
            place += if_true if accumulator == constant else if_false
        else:
            assert what == 0x06
            return constant


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize("contained", [True, False])
def test_only_what_is_listed_is_allowed(machine, contained):
    audit, column = ARCHITECTURES[machine]
    made = program(machine, contained=contained)
    listed = set(calls(machine, READING + WRITING if contained else READING).values())
    conditional = {numbers[column] for numbers, _ in CONDITIONAL.values()}
    allowed = {number for number in range(1024) if verdict(made, audit, number, *[2**64 - 1] * 6) == ALLOW}
    # All bits set ask clone for a thread among other things; open only where nothing can be written.
    assert allowed - listed <= {numbers[column] for numbers, _ in CONDITIONAL_IF_CONTAINED.values()}
    assert listed <= allowed and not conditional & allowed
    assert verdict(made, audit, 1 << 30) == NOT_PERMITTED
    assert verdict(made, 0x40000003, 1) == KILL  # the 32-bit calls


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_arguments_decide(machine):
    audit, column = ARCHITECTURES[machine]

    def asked(name, *arguments, contained=True):
        made = program(machine, contained=contained)
        return verdict(made, audit, CONDITIONAL[name][0][column], *arguments) == ALLOW

    assert asked("fcntl", 3, 2) and not asked("fcntl", 3, 8) and not asked("fcntl", 3, 10)
    assert asked("ioctl", 1, 0x5401) and not asked("ioctl", 1, 0x5412)
    assert (
        asked("socketpair", 1, 1 | 0x80000)
        and not asked("socketpair", 1, 2)
        and not asked("socketpair", 2, 1)
    )
    assert asked("sendto", 3, 9, 9, 0, 0) and not asked("sendto", 3, 9, 9, 0, 4096)
    assert not asked("sendto", 3, 9, 9, 0, 1 << 40)
    assert asked("prlimit64", 0) and not asked("prlimit64", 1)
    assert asked("prctl", 15) and not asked("prctl", 22)
    thread, process = 0x3D0F00, 0x1200011
    clone, openat, clone3 = (56, 257, 435) if column == 0 else (220, 56, 435)
    contained, reading = (program(machine, contained=contained) for contained in (True, False))
    assert verdict(contained, audit, clone, thread) == ALLOW
    assert verdict(contained, audit, clone, process) == NOT_PERMITTED
    assert verdict(reading, audit, clone, thread) == NOT_PERMITTED
    assert verdict(contained, audit, clone3) == verdict(reading, audit, clone3) == NOT_IMPLEMENTED
    for flags, may in ((0x80000, True), (1, False), (2, False), (0x40, False), (0x200, False)):
        assert (verdict(reading, audit, openat, 0, 0, flags) == ALLOW) is may
        assert verdict(contained, audit, openat, 0, 0, flags) == ALLOW
