/** Battleship for one player: sink a hidden fleet on a 6×6 grid within a bound on shots. */

import type { Action, Environment, Observation, Offer, StepResult } from "./earl/environment.ts";
import { Random } from "./earl/random.ts";

const SIDE = 6;
const COLUMNS = "ABCDEF";
const SHIPS = [3, 2, 2];
const SHIP_CELLS = SHIPS.reduce((sum, length) => sum + length, 0);
const DEFAULT_SHOTS = 24;

/** A cell is row * SIDE + column. */
type Ship = number[];

class Battleship implements Environment {
  #fleet: Ship[] = [];
  #fired = new Set<number>();
  #shots = 0;

  /** task: {"shots": 24}, from SHIP_CELLS to the whole grid. */
  reset(seed: bigint, task: Record<string, unknown>): Observation {
    const { shots = DEFAULT_SHOTS, ...unknown } = task;
    const strange = Object.keys(unknown)[0];
    if (strange !== undefined) throw new RangeError(`task has no ${JSON.stringify(strange)}; it has shots`);
    if (!Number.isInteger(shots) || Number(shots) < SHIP_CELLS || Number(shots) > SIDE * SIDE) {
      throw new RangeError(`shots = ${shots} is not from ${SHIP_CELLS} to ${SIDE * SIDE}`);
    }
    this.#shots = Number(shots);
    const random = new Random(seed);
    for (const length of SHIPS) this.#fleet.push(random.choice(placements(length, this.#fleet.flat())));
    return this.#observe("Sink the fleet: fire at one cell at a time, for example [B4].");
  }

  step(action: Action): StepResult {
    const cell = cellOf(action.text);
    if (cell === undefined || this.#fired.has(cell)) {
      const observation = this.#observe(cell === undefined ? "That is no cell." : "Fired at already.");
      return { observation, done: true, metrics: this.#metrics(true) };
    }
    this.#fired.add(cell);
    const ship = this.#fleet.find((cells) => cells.includes(cell));
    const done = this.#afloat.length === 0;
    const outcome = ship === undefined ? "Miss." : this.#isSunk(ship) ? "Hit and sunk." : "Hit.";
    return {
      observation: this.#observe(outcome),
      reward: ship === undefined ? 0 : 1 / SHIP_CELLS,
      done,
      truncated: !done && this.#left === 0,
      metrics: this.#metrics(false),
    };
  }

  get #left(): number {
    return this.#shots - this.#fired.size;
  }

  get #afloat(): Ship[] {
    return this.#fleet.filter((ship) => !this.#isSunk(ship));
  }

  #isSunk(ship: Ship): boolean {
    return ship.every((cell) => this.#fired.has(cell));
  }

  #metrics(illegal: boolean): Record<string, number> {
    return { win: Number(this.#afloat.length === 0), shots: this.#fired.size, illegal: Number(illegal) };
  }

  #observe(outcome: string): Observation {
    const free = CELLS.filter((cell) => !this.#fired.has(cell));
    const afloat = this.#afloat.map((ship) => ship.length).join(", ") || "none";
    const text = `${this.#grid()}\n${outcome} Ships afloat: ${afloat}. Shots left: ${this.#left}.`;
    return { text, legalActions: free.map((cell) => `[${nameOf(cell)}]`) };
  }

  /** One row a line: X hit, o miss, . unknown. */
  #grid(): string {
    const ships = new Set(this.#fleet.flat());
    const mark = (cell: number) => (this.#fired.has(cell) ? (ships.has(cell) ? "X" : "o") : ".");
    const rows = Array.from({ length: SIDE }, (_, row) =>
      [row + 1, ...Array.from({ length: SIDE }, (_, column) => mark(row * SIDE + column))].join(" "),
    );
    return [`  ${[...COLUMNS].join(" ")}`, ...rows].join("\n");
  }
}

const CELLS = Array.from({ length: SIDE * SIDE }, (_, cell) => cell);

function nameOf(cell: number): string {
  return `${COLUMNS[cell % SIDE]}${Math.floor(cell / SIDE) + 1}`;
}

/** The cell that an action fires at: "[B4]" or "B4". */
function cellOf(text: string): number | undefined {
  const name = text.trim().replace(/^\[(.*)\]$/, "$1").toUpperCase();
  return CELLS.find((cell) => nameOf(cell) === name);
}

/** Every way to lay a ship of this length on cells that are not taken. */
function placements(length: number, taken: number[]): Ship[] {
  const ways: Ship[] = [];
  for (const start of CELLS) {
    const across = Array.from({ length }, (_, i) => start + i);
    const down = Array.from({ length }, (_, i) => start + i * SIDE);
    if ((start % SIDE) + length <= SIDE) ways.push(across);
    if (Math.floor(start / SIDE) + length <= SIDE) ways.push(down);
  }
  return ways.filter((ship) => !ship.some((cell) => taken.includes(cell)));
}

export const battleship: Offer = {
  name: "example/battleship",
  description: "Sink a hidden fleet: an action is [B4].",
  rewardRange: [0, 1],
  create: () => new Battleship(),
};
