"""A frozen policy that another server has: its log-probs of sampled tokens, by requests over HTTP.

    sequences ─ up to the last trained token ─► one request each, teacher.requests at once ─► log-probs

Promise: values are those of softmax(logits) at the position before a token, which is what the launch requires
(earl.config.served_teacher_check). The server is checked before the first of them, for it may have been
started again with another model. A process that is asked to end gives its lease up within a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from earl.dispatch.layout.box import Box
from earl.errors import ConfigError, EarlError
from earl.models.served_teacher import ServedTeacher, check_served, read_record
from earl.models.spec import ModelSpec
from earl.served.client import ServedModelClient
from earl.served.endpoint import ServedEndpoint
from earl.waiting import until_first
from services.trainer.reference.policy import MaskedTrajectory, WorkAbandoned
from services.trainer.stage.rank_resources import CLOSE_S, RankResources

NOTICE_S = 0.05
SLACK_S = 10.0
# Requests of the check of a server, one after the other at worst: its models, and parts of the probe.
CHECKS = 6


class ServedPolicy:
    """The policy at a server, for a stage of one rank. spec: of the run's model, whose tokens it has."""

    def __init__(self, resources: RankResources, spec: ModelSpec) -> None:
        """Asks nothing of the server yet. Raises ConfigError, InsecureCall."""
        self._spec = spec
        self._config, self._model = resources.config, resources.run_dir / "model"
        self._io, self._requests = resources.io, resources.requests
        self._endpoint = ServedEndpoint.of(self._config.teacher)
        self._client = ServedModelClient(self._endpoint)
        self._teacher: ServedTeacher | None = None
        self._checked = False

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    def fill(self, directory: Path) -> None:
        """Reads what the launch checked. Raises ModelNotFound."""
        self._teacher = read_record(directory)

    def close(self) -> None:
        self._io.run(self._client.close(), CLOSE_S)

    def logprobs(self, sequences: Sequence[MaskedTrajectory], box: Box, into: np.ndarray) -> None:
        """Fills `into`, float32 of `box`: all of the sequences laid end to end, 0 where the mask is 0.

        Raises WorkAbandoned once the process is to end, and as ServedModelClient and `check_served`.
        """
        waves = CHECKS - (-len(sequences) // self._endpoint.requests)
        bound_s = waves * self._client.request_bound_s + SLACK_S
        into[:] = np.concatenate(self._io.run(self._until_end(sequences), bound_s))

    async def _until_end(self, sequences: Sequence[MaskedTrajectory]) -> list[np.ndarray]:
        """The log-probs of each sequence. Raises WorkAbandoned once the process is to end."""
        task = asyncio.create_task(self._computed(sequences))
        try:
            await until_first(task, self._to_end())
            if not task.done():
                raise WorkAbandoned
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _to_end(self) -> None:
        # Events of threads: nothing tells the loop.
        while not (self._requests.stop.is_set() or self._requests.run_ended.is_set()):  # noqa: ASYNC110
            await asyncio.sleep(NOTICE_S)

    async def _computed(self, sequences: Sequence[MaskedTrajectory]) -> list[np.ndarray]:
        model = await self._checked_model()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._logprobs(model, sequence)) for sequence in sequences]
        except ExceptionGroup as failures:
            # The others were cancelled: the first says why.
            raise _first_reason(failures) from None
        return [task.result() for task in tasks]

    async def _checked_model(self) -> str:
        """The teacher's name at the server, which is checked the first time."""
        assert self._teacher is not None, "log-probs are asked once the policy is filled"
        if not self._checked:
            now = await check_served(self._client, self._config, self._model)
            if now != self._teacher:
                raise ConfigError(
                    f"{self._config.teacher.named} serves {now.model!r}, and the run's teacher was "
                    f"{self._teacher.model!r}",
                    "serve that again, or set teacher.served_model and resume the run",
                )
            self._checked = True
        return self._teacher.model

    async def _logprobs(self, model: str, sequence: MaskedTrajectory) -> np.ndarray:
        """float32[tokens] of a sequence. Those after the last trained token need no request."""
        values = np.zeros(len(sequence.tokens), np.float32)
        trained = np.flatnonzero(sequence.loss_mask)
        if len(trained):
            prompt = sequence.tokens[: trained[-1] + 1].tolist()
            values[trained] = (await self._client.prompt_logprobs(model, prompt))[trained]
        return values


def _first_reason(failures: ExceptionGroup[Exception]) -> Exception:
    """The first error with a reason for people; all of them if none has one."""
    return next((error for error in failures.exceptions if isinstance(error, EarlError)), failures)
