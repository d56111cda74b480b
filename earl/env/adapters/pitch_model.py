"""An aircraft's recovery in pitch: a stand-in for a flight simulator, in SI units and radians.

The task is that of Monaco, Ward and Barto, "Automated Aircraft Recovery via Reinforcement Learning:
Initial Experiments" (NIPS 1997): from a dive or a climb to level flight in minimum time, by the pitch
stick alone, without striking the ground and within a bound on the acceleration at the pilot's station.
They flew a medium-fidelity simulation of a particular aircraft, which is not published. This is a model
of the same kind of task, not of that aircraft, and its figures compare with nothing of theirs.

A point mass in a vertical plane, with the fast (short-period) motion reduced to how the load factor
follows the stick through a flight control system:

    V' = (T - D) / m - g sin y             V speed, y flight-path angle (up is positive), h altitude
    y' = g (n - cos y) / V                 n load factor: lift over weight
    h' = V sin y
    n'' = w^2 (c - n) - 2 z w n'           c the load factor that the stick commands: 1 at neutral,
                                           STICK_PULL more at full pull, STICK_PUSH less at full push;
                                           no more than the wing can give at this speed
    D = q S (CD0 + K CL^2)                 q dynamic pressure, CL = n m g / (q S)

    pilot's load factor = n + arm / g * (pitch acceleration), pitch acceleration = w' of path and of
    angle of attack, of which those terms are kept that follow n' and n'': g n' / V + m g n'' / (q S CLa)

Mass and wing area are those of the F-16 model in Stevens and Lewis, "Aircraft Control and Simulation";
everything else (a round lift slope, drag polar, short period, thrust, pilot's distance) is chosen to be
plausible for a fighter, not measured. Air: 1.225 kg/m3 at the ground, thinner by a factor e every 8,500 m.
Integrated by fourth-order Runge-Kutta in steps of STEP_S, which is a twentieth of the short period.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

GRAVITY = 9.80665
STEP_S = 0.05
# Load factors that full stick adds to and takes from 1.
STICK_PULL, STICK_PUSH = 8.0, 4.0
# Below it the equations of the path are no longer meant.
LEAST_SPEED = 30.0

# How long the load factor takes to follow; from where on level flight may be one turn away.
SETTLING_S, NEARLY = 1.5, math.radians(15.0)
LEVEL_ANGLE = math.radians(3.0)
LEVEL_RATE = math.radians(2.0)
# Grid of the sticks that `near_optimal` chooses from, from neutral to either limit.
STICK_STEPS = 40


@dataclass(frozen=True, slots=True)
class Aircraft:
    """kg, m2, newtons, radians, metres; coefficients refer to the wing's area."""

    mass: float = 9_295.0
    wing: float = 27.87
    lift_slope: float = 4.0
    most_lift: float = 1.4
    drag_zero: float = 0.02
    drag_induced: float = 0.12
    thrust: float = 25_000.0
    short_period: float = 3.0
    damping: float = 0.7
    pilot_arm: float = 4.0


@dataclass(frozen=True, slots=True)
class PitchState:
    """seconds since the start; metres, m/s, radians; load factor and its rate per second."""

    altitude: float
    speed: float
    path: float
    load: float = 1.0
    load_rate: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Moment:
    """A state with what is felt in it. path_rate: radians a second. pilot: load factor at the pilot's."""

    state: PitchState
    path_rate: float
    pilot: float

    @property
    def level(self) -> bool:
        """Within LEVEL_ANGLE of level, changing less than LEVEL_RATE."""
        return abs(self.state.path) <= LEVEL_ANGLE and abs(self.path_rate) <= LEVEL_RATE

    @property
    def struck(self) -> bool:
        """Returns whether the aircraft is at or below ground level."""
        return self.state.altitude <= 0


_Rates = tuple[float, float, float, float, float]


def pressure(aircraft: Aircraft, state: PitchState) -> float:
    """Dynamic pressure times wing area, newtons."""
    density = 1.225 * math.exp(-state.altitude / 8_500.0)
    return 0.5 * density * max(state.speed, LEAST_SPEED) ** 2 * aircraft.wing


def commanded(aircraft: Aircraft, state: PitchState, stick: float) -> float:
    """The load factor that the stick (-1 full push to 1 full pull) asks for and the wing can give."""
    load_factor = 1.0 + stick * (STICK_PULL if stick > 0 else STICK_PUSH)
    available = pressure(aircraft, state) * aircraft.most_lift / (aircraft.mass * GRAVITY)
    return max(-available, min(available, load_factor))


def rates(aircraft: Aircraft, state: PitchState, stick: float) -> _Rates:
    """d/dt of (altitude, speed, path, load, load_rate)."""
    force = pressure(aircraft, state)
    speed = max(state.speed, LEAST_SPEED)
    lift = state.load * aircraft.mass * GRAVITY / force
    drag = force * (aircraft.drag_zero + aircraft.drag_induced * lift**2)
    omega = aircraft.short_period
    off = commanded(aircraft, state, stick) - state.load
    return (
        state.speed * math.sin(state.path),
        (aircraft.thrust - drag) / aircraft.mass - GRAVITY * math.sin(state.path),
        GRAVITY * (state.load - math.cos(state.path)) / speed,
        state.load_rate,
        omega**2 * off - 2 * aircraft.damping * omega * state.load_rate,
    )


def moment(aircraft: Aircraft, state: PitchState, stick: float) -> Moment:
    """Computes the accelerations and angles in a state under this stick."""
    _, _, path_rate, load_rate, load_acceleration = rates(aircraft, state, stick)
    attack = aircraft.mass * GRAVITY / (pressure(aircraft, state) * aircraft.lift_slope)
    pitching = GRAVITY * load_rate / max(state.speed, LEAST_SPEED) + attack * load_acceleration
    return Moment(state, path_rate, state.load + aircraft.pilot_arm / GRAVITY * pitching)


def advanced(aircraft: Aircraft, state: PitchState, stick: float, step_s: float = STEP_S) -> PitchState:
    """The state `step_s` later, the stick held."""

    def moved(slope: _Rates, by: float) -> PitchState:
        return PitchState(
            state.altitude + by * slope[0],
            state.speed + by * slope[1],
            state.path + by * slope[2],
            state.load + by * slope[3],
            state.load_rate + by * slope[4],
            state.seconds + by,
        )

    first = rates(aircraft, state, stick)
    second = rates(aircraft, moved(first, step_s / 2), stick)
    third = rates(aircraft, moved(second, step_s / 2), stick)
    fourth = rates(aircraft, moved(third, step_s), stick)
    mean = [(a + 2 * b + 2 * c + d) / 6 for a, b, c, d in zip(first, second, third, fourth, strict=True)]
    return moved((mean[0], mean[1], mean[2], mean[3], mean[4]), step_s)


def hold_stick(aircraft: Aircraft, state: PitchState, stick: float, hold_s: float) -> Iterator[Moment]:
    """The moments while the stick is held, from now on, STEP_S apart; ends early at the ground."""
    yield moment(aircraft, state, stick)
    for _ in range(round(hold_s / STEP_S)):
        state = advanced(aircraft, state, stick)
        felt = moment(aircraft, state, stick)
        yield felt
        if felt.struck:
            return


def near_optimal(aircraft: Aircraft, state: PitchState, hold_s: float, limits: tuple[float, float]) -> float:
    """The stick of a policy close to the fastest: as hard as the limits allow, eased off just in time.

    A stick after which the aircraft is level, if there is one: the smallest. Else, of the sticks on a grid
    of 1 / STICK_STEPS, the one furthest towards level for which, as the model foresees, the pilot stays
    within `limits` (least, most load factor) and neutral stick afterwards does not carry the path past level.
    Bang-bang but for the last moments, as in minimum-time control of a bounded input; it sees the model,
    which no agent does.
    """
    if abs(state.path) < NEARLY:
        for stick in sorted(
            (tried / STICK_STEPS for tried in range(-STICK_STEPS, STICK_STEPS + 1, 2)), key=abs
        ):
            felt = list(hold_stick(aircraft, state, stick, hold_s))
            if felt[-1].level and all(limits[0] <= moment.pilot <= limits[1] for moment in felt):
                return stick
    towards = 1 if state.path < 0 else -1
    low, high = 0, STICK_STEPS  # a bisection: what is too hard stays too hard
    while low < high:
        tried = (low + high + 1) // 2
        felt = list(hold_stick(aircraft, state, towards * tried / STICK_STEPS, hold_s))
        felt += hold_stick(aircraft, felt[-1].state, 0.0, SETTLING_S)
        within = all(limits[0] <= moment.pilot <= limits[1] for moment in felt)
        past = max(towards * moment.state.path for moment in felt) > LEVEL_ANGLE / 2
        low, high = (low, tried - 1) if past or not within else (tried, high)
    return towards * low / STICK_STEPS
