"""An OpenEnv server, written with the package's SDK: `python tests/envs/openenv_side.py PORT ROOM`.

Guess a number below 100: higher, lower, or right. Runs in an environment that has neither EARL nor its tests.
"""

import os
import random
import signal
import sys

import uvicorn  # pyright: ignore[reportMissingImports]
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app  # pyright: ignore[reportMissingImports]


class Guess(Action):
    """A number; negative ones make trouble."""

    number: int


class Hint(Observation):
    """The observation of the agent."""

    text: str
    turn: int


class Guessing(Environment):
    """Half of the reward for a right guess, the rest the sooner the better."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, below=100, **named):
        self._secret = random.Random(seed).randrange(below)
        self._state = State(episode_id=episode_id)
        return Hint(text=f"Guess a number below {below}.", turn=0)

    def step(self, action, timeout_s=None, **named):
        self._state.step_count += 1
        turn, number = self._state.step_count, action.number
        if number == -1:
            raise RuntimeError("the environment is broken")
        if number == -2:
            os._exit(3)
        if number == -3:
            os.kill(os.getpid(), signal.SIGSTOP)
        if number == -4:
            return Hint(text="far too much", turn=turn, reward=float("inf"), done=True)
        if number == -5:
            return Hint(text="x" * (8 << 20), turn=turn)
        if number == self._secret:
            return Hint(text="right", turn=turn, reward=0.5 + 0.5 / turn, done=True)
        return Hint(text="higher" if number < self._secret else "lower", turn=turn, reward=0.0)

    @property
    def state(self):
        return self._state


if __name__ == "__main__":
    port, room = map(int, sys.argv[1:])
    app = create_fastapi_app(Guessing, Guess, Hint, max_concurrent_envs=room)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")
