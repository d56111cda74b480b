"""`python -m earl.stack.prepare --run FILE` makes the directory of a run whose services start on their own.

What the launcher does for a run on one machine: <directory>/model, and run.toml and run.json, which `earl
status`, `earl report` and their like read. run.json names the services where others reach them
(EARL_SCHEDULER, EARL_GATEWAY), and the dtypes that a run file leaves to "auto": this machine decides. Where
nothing bounds contexts, they end at 256 tokens: what the machines of a fleet hold, this one does not know.
Doing it again changes nothing of the model. The directory is EARL_RUN_DIR.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from earl.config.context_bound import UNKNOWN_TOKENS
from earl.config.run import RunConfig
from earl.config.service import service_run
from earl.errors import ConfigError, EarlError
from earl.models.create import create_models
from earl.rpc.main import ended_by
from earl.rpc.peers import peer
from earl.stack.auto_dtype import settle
from earl.stack.begun_bounds import with_begun_bounds
from earl.stack.imitated import imitated_of, keep_imitated, with_measured_score
from earl.stack.run_files import replace
from earl.stack.rundir import check_same_policy, to_toml, with_absolute_files
from earl.stack.task_sets import record_task_sets, task_sets_of

REFERENCE_NEEDED = (
    "prepare: trainer.kl_coefficient or trainer.protected_kl > 0: start the reference stage, too, or the run "
    "waits for it (docs/deploy.md)\n"
)
TEACHER_NEEDED = (
    "prepare: teacher.path or teacher.url: start the teacher (`python -m services.trainer.teacher`), too, or "
    "the run waits for it\n"
)
REWARD_MODEL_NEEDED = (
    "prepare: reward_model.path: start the reward model (`python -m services.trainer.reward_model`), too, or "
    "the run waits for it\n"
)
BOUND_NEEDED = (
    f"prepare: contexts end at {UNKNOWN_TOKENS} tokens, because the memory of the other machines is not "
    "known here: give rollout.max_context_tokens, or rollout.held_context_tokens\n"
)


def prepare(config: RunConfig, directory: Path) -> None:
    """Raises ConfigError (another run is there, or a peer has no address), and what `create_models` does."""
    written = directory / "run.json"
    config, _ = with_begun_bounds(settle(config, written), written)
    if config.context_bound.source == "unknown":
        held = config.rollout.model_copy(update={"held_context_tokens": UNKNOWN_TOKENS})
        config = config.model_copy(update={"rollout": held})
        sys.stderr.write(BOUND_NEEDED)
    if written.is_file():
        check_same_policy(config, RunConfig.model_validate_json(written.read_bytes()))
    addresses = {
        "scheduler": config.scheduler.model_copy(update={"bind": peer("EARL_SCHEDULER")}),
        "gateway": config.gateway.model_copy(update={"bind": peer("EARL_GATEWAY")}),
    }
    config = config.model_copy(update=with_absolute_files(config))
    if config.teacher.episodes and not config.warmup.episodes:
        raise ConfigError(
            f"teacher.episodes = {config.teacher.episodes} are played by the machine that runs `earl train`, "
            "and the services of this run start on their own",
            "record them there, and give warmup.episodes (docs/algorithms.md)",
        )
    task_sets, imitated = task_sets_of(config, directory), imitated_of(config, directory)
    config = with_measured_score(config, imitated)
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    record_task_sets(task_sets, directory)
    keep_imitated(imitated, directory)
    create_models(directory, config)
    replace(directory / "run.toml", to_toml(config.model_dump(mode="json")))
    replace(written, config.model_copy(update=addresses).model_dump_json(indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m earl.stack.prepare", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="run file")
    try:
        config, directory = service_run(parser.parse_args().run)
        prepare(config, directory.resolve())
    except EarlError as error:
        return ended_by(error)
    if config.trainer.uses_reference:
        sys.stderr.write(REFERENCE_NEEDED)
    if config.teacher.given:
        sys.stderr.write(TEACHER_NEEDED)
    if config.reward_model.path:
        sys.stderr.write(REWARD_MODEL_NEEDED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
