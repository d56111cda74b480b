"""A game of two seats: take one to three of a heap, who takes the last wins. For tests of several seats."""

import random

from earl.env import Environment, Observation, StepResult


class Heap(Environment):
    """Each observation says what was taken since the same seat's last one; nonsense loses for who says it."""

    name = "test/heap"
    reward_range = (-1.0, 1.0)
    seats = 2
    blocking = False

    def reset(self, seed, task):
        self.heap = random.Random(seed).randrange(4, 12)
        self.rng = random.Random(seed + 1)
        self.seat, self.taken = 0, ""
        return self._shown()

    def step(self, action):
        mover, played = self.seat, str(action) in ("1", "2", "3") and int(action) <= self.heap
        if not played:
            return self._end(mover, winner=None, illegal=True)
        self.heap -= int(action)
        if not self.heap:
            return self._end(mover, winner=mover)
        if self.seats_played == 1:
            taken = self.rng.randrange(1, min(3, self.heap) + 1)
            self.heap -= taken
            self.taken = f"taken {taken}. "
            return StepResult(self._shown()) if self.heap else self._end(0, winner=1)
        self.taken, self.seat = f"taken {action}. ", 1 - mover
        return StepResult(self._shown(), rewards=(0.0, 0.0))

    def _shown(self):
        legal = [str(count) for count in range(1, min(3, self.heap) + 1)]
        return Observation(f"{self.taken}{self.heap} left", legal, seat=self.seat)

    def _end(self, mover, winner, illegal=False):
        loser = mover if illegal else 1 - winner
        rewards = [-1.0 if seat == loser else float(seat == winner) for seat in (0, 1)]
        figures = [
            {"win": float(seat == winner), "illegal": float(illegal and seat == mover)} for seat in (0, 1)
        ]
        shown = Observation("over", seat=mover)
        if self.seats_played == 1:
            return StepResult(Observation("over"), rewards[0], done=True, metrics=figures[0])
        return StepResult(shown, done=True, metrics=figures[0], rewards=rewards, seat_metrics=figures)
