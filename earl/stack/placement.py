"""Places the processes of a run on the devices of this machine. Pure.

    devices, device of rollout, trainer, reference ┐
    GPUs of this machine                           ┴─► process name ─► device numbers

Stages that name device numbers come first; the others take the lowest numbers that are free, the trainer
before the rollout workers and those before reference stage, teacher and reward model. On a machine without
GPUs a device is a slot of the processor, of which there are as many as are asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from earl.config.devices import DeviceChoice, shown_devices
from earl.config.run import RunConfig
from earl.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class StageDemand:
    """The needs of a stage: `each` devices for every one of its processes.

    sizes: the keys that decide how many, in words. device: "auto", "cpu" or "cuda". apart: how many of a
    process' devices must be different ones, even where stages share: ranks of one group.
    """

    stage: str
    processes: tuple[str, ...]
    each: int
    apart: int
    sizes: str
    device: str
    choice: DeviceChoice

    @property
    def needs(self) -> int:
        return len(self.processes) * self.each

    def on_gpus(self, gpus: int) -> bool:
        """Returns whether the stage computes on GPUs where there are so many."""
        return self.device == "cuda" or (self.device == "auto" and gpus > 0)


@dataclass(frozen=True, slots=True)
class Placement:
    """The devices of each process that computes, by its name, in the order of its ranks or engines.

    gpus: of the machine. on_gpus: the processes that compute on GPUs; the others' devices are slots.
    """

    gpus: int
    devices: Mapping[str, tuple[int, ...]]
    on_gpus: frozenset[str]

    def environment(self, process: str, visible: str | None) -> dict[str, str]:
        """The variables that show a process its GPUs alone; none where there are no GPUs, or for a process
        that does not compute.

        visible: the launcher's own CUDA_VISIBLE_DEVICES; None: it has none.
        """
        if not self.gpus or process not in self.devices:
            return {}
        if process not in self.on_gpus:
            return {VISIBLE: ""}
        names = visible.split(",") if visible is not None else [str(number) for number in range(self.gpus)]
        numbers = dict.fromkeys(self.devices[process])
        return {VISIBLE: ",".join(names[number].strip() for number in numbers)}

    def lines(self) -> Iterator[str]:
        """A line for each process: "trainer on GPUs 0-3", "rollout-0 on the processor"."""
        for process, numbers in self.devices.items():
            if process in self.on_gpus:
                distinct = tuple(dict.fromkeys(numbers))
                yield f"{process} on GPU{'s' if len(distinct) > 1 else ''} {shown_devices(distinct)}"
            else:
                yield f"{process} on the processor"


def demands(config: RunConfig) -> list[StageDemand]:
    """The stages of a run that compute, those first that take devices first."""
    rollout, trainer = config.rollout, config.trainer
    workers = tuple(f"rollout-{index}" for index in range(rollout.workers))
    sizes = "rollout.workers x engines x tp"
    stages = [
        StageDemand(
            "trainer",
            ("trainer",),
            trainer.ranks,
            trainer.ranks,
            "trainer.ranks",
            trainer.device,
            DeviceChoice.of(trainer.devices),
        ),
        StageDemand(
            "rollout",
            workers,
            rollout.engines * rollout.tp,
            rollout.tp,
            sizes,
            rollout.device,
            DeviceChoice.of(rollout.devices),
        ),
    ]
    for role, frozen in config.frozen_models.items():
        ranks, choice = frozen.dp * frozen.tp, DeviceChoice.of(frozen.devices)
        stages.append(StageDemand(role, (role,), ranks, ranks, f"{role}.dp x tp", frozen.device, choice))
    return stages


def place(config: RunConfig, gpus: int) -> Placement:
    """Places every process of a run on one machine with so many GPUs.

    Raises ConfigError where a stage asks for other devices than it uses, for one that there is not, or for
    one that another stage has, unless stack.share is set.
    """
    stages = demands(config)
    for stage in stages:
        _check_size(stage)
    devices: dict[str, tuple[int, ...]] = {}
    # GPUs and the processor's slots are counted apart.
    users: dict[bool, dict[int, list[str]]] = {True: {}, False: {}}
    for stage in sorted(stages, key=lambda stage: not stage.choice.numbers):
        on_gpus = stage.on_gpus(gpus)
        taken = users[on_gpus]
        if on_gpus and not gpus:
            raise ConfigError(
                f'{stage.stage}.device = "cuda" on a machine without a GPU that torch can use',
                f'set {stage.stage}.device = "auto", or launch the run where GPUs are',
            )
        numbers = stage.choice.numbers or _free(
            stage, taken, gpus if on_gpus else None, bool(config.stack.share)
        )
        _check_numbers(stage, numbers, taken, gpus if on_gpus else None, bool(config.stack.share))
        for place, number in enumerate(numbers):
            taken.setdefault(number, []).append(stage.stage)
            process = stage.processes[place // stage.each]
            devices[process] = (*devices.get(process, ()), number)
    order = [process for stage in stages for process in stage.processes]
    return Placement(
        gpus,
        {process: devices[process] for process in order},
        frozenset(process for stage in stages if stage.on_gpus(gpus) for process in stage.processes),
    )


def _check_size(stage: StageDemand) -> None:
    if stage.choice.size not in (0, stage.needs):
        raise ConfigError(
            f"{stage.stage}.devices gives {stage.choice.size} and {stage.sizes} uses {stage.needs}",
            f"give {stage.stage}.devices {stage.needs} of them, or change {stage.sizes}",
        )


def _free(
    stage: StageDemand, taken: Mapping[int, Sequence[str]], gpus: int | None, share: bool
) -> tuple[int, ...]:
    """The lowest devices that nobody has; with share, then those that the fewest have. gpus: None: slots."""
    if gpus is None:
        free = (number for number in range(stage.needs + len(taken)) if number not in taken)
        return tuple(free)[: stage.needs]
    free = [number for number in range(gpus) if number not in taken]
    if len(free) < stage.needs and not share:
        raise ConfigError(
            f"{stage.stage} uses {_counted(stage.needs)} ({stage.sizes}), and {len(free)} of {gpus} are "
            f"free: {_holders(taken)}",
            f'lower {stage.sizes}, set {stage.stage}.device = "cpu", or let stages share GPUs with '
            "stack.share = true",
        )
    users = Counter({number: len(taken.get(number, ())) for number in range(gpus)})
    chosen: list[int] = []
    for _ in range(stage.needs):
        number = min(range(gpus), key=lambda number: (users[number], number))
        users[number] += 1
        chosen.append(number)
    return tuple(chosen)


def _check_numbers(
    stage: StageDemand,
    numbers: Sequence[int],
    taken: Mapping[int, Sequence[str]],
    gpus: int | None,
    share: bool,
) -> None:
    if gpus is not None and max(numbers) >= gpus:
        raise ConfigError(
            f"{stage.stage}.devices names GPU {max(numbers)}, and this machine has {_counted(gpus)}",
            f"GPUs are counted from 0: the last is {gpus - 1}",
        )
    if gpus is not None and stage.apart > gpus:
        raise ConfigError(
            f"{stage.stage} uses {_counted(stage.apart)} at once, and this machine has {gpus}",
            f'lower {stage.sizes}, or set {stage.stage}.device = "cpu"',
        )
    both = [number for number in numbers if number in taken]
    if both and not share:
        others = " and ".join(dict.fromkeys(name for number in both for name in taken[number]))
        raise ConfigError(
            f"{stage.stage}.devices has {shown_devices(tuple(both))}, which {others} has too",
            "give each stage devices of its own, or let them share with stack.share = true",
        )


def _counted(number: int) -> str:
    return f"{number} device" if number == 1 else f"{number} devices"


def _holders(taken: Mapping[int, Sequence[str]]) -> str:
    stages = dict.fromkeys(name for names in taken.values() for name in names)
    parts = [
        f"{stage} has {shown_devices(tuple(number for number, names in taken.items() if stage in names))}"
        for stage in stages
    ]
    return ", ".join(parts) or "nobody has any"
