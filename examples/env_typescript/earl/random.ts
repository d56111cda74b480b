/** SplitMix64 (Steele, Lea and Flood, 2014): the same numbers from the same seed, on every machine. */
export class Random {
  #state: bigint;

  constructor(seed: bigint) {
    this.#state = BigInt.asUintN(64, seed);
  }

  #next(): bigint {
    this.#state = BigInt.asUintN(64, this.#state + 0x9e3779b97f4a7c15n);
    let z = this.#state;
    z = BigInt.asUintN(64, (z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n);
    z = BigInt.asUintN(64, (z ^ (z >> 27n)) * 0x94d049bb133111ebn);
    return z ^ (z >> 31n);
  }

  /** A whole number from 0 to bound - 1, each equally likely. */
  below(bound: number): number {
    const size = BigInt(bound);
    const limit = (1n << 64n) - ((1n << 64n) % size);
    let drawn = this.#next();
    while (drawn >= limit) drawn = this.#next();
    return Number(drawn % size);
  }

  choice<T>(values: readonly T[]): T {
    return values[this.below(values.length)]!;
  }
}
