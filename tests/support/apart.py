"""Environments that break the process they run in: for tests of isolation, which imports them by name."""

import ctypes
import os
import time

from earl.env import Environment, StepResult


class Apart(Environment):
    """Each action breaks something; others are answered with the process and the episode in it."""

    name = "test/apart"
    isolation = "process"
    memory_bytes = 512 << 20
    episodes = 0

    def reset(self, seed, task):
        type(self).episodes += 1
        print("to standard output")  # which must not disturb the stream
        return str(os.getpid())

    def step(self, action):
        calls = action.tool_calls
        if action == "segfault":
            ctypes.string_at(0)
        elif action == "spin":
            self.report_progress("spinning")
            while True:
                pass
        elif action == "memory":
            bytearray(1 << 32)
        elif action == "garbage":
            for descriptor in map(int, os.listdir("/proc/self/fd")):
                if descriptor > 2:
                    try:
                        os.write(descriptor, b"\xff" * 64)
                    except OSError:
                        pass
            time.sleep(30)
        return StepResult(f"{os.getpid()} {self.episodes} {calls}", 0.5, done=action == "end")

    def close(self):
        if path := os.environ.get("EARL_TEST_CLOSED"):
            with open(path, "a") as file:
                file.write("closed\n")
