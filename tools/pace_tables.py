"""Writes the packaged pace tables in earl/pacing/tables: `python tools/pace_tables.py --write`.

fig3        EARL (arXiv 2510.05943), Fig. 3: what TP8 generates on a device relative to TP4, Qwen2.5-72B on
            H100, and where TP4 is out of memory. Eight devices, as two replicas of TP4 or one of TP8. The
            paper gives no absolute rate: TP4's is a roofline of such a device, TP8's is TP4's times the
            paper's ratio.
slow-link   A table of ours: small devices whose link is slow, so that tensor parallelism costs speed and pays
            in memory alone. All of it is a formula. Its contexts are those of a small run.
compute-bound
            A table of ours for one pool of eight devices. Whatever the number of a stage's devices, each of
            rollout generates as many tokens a second; one of the trainer trains as many, fewer of long ones.
long-wide   A table of ours for one pool of eight devices. Replicas of one device are the quickest for short
            sequences and slow down where these grow long; those of two devices hardly do.

A row's `source` says which of the two its rate is. Without --write only differences are printed; exit code 1
if there are any.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.paper.fig3 import PAPER, RESPONSES  # noqa: E402  found from wherever this is run
from earl.csv_text import text_of  # noqa: E402

TABLES = ROOT / "earl" / "pacing" / "tables"
COLUMNS = (
    "stage", "dp", "tp", "cp", "pp", "context_tokens", "concurrency", "tokens_per_device_s", "source",
)  # fmt: skip
Row = tuple[object, ...]


def fig3() -> Iterator[Row]:
    """Two replicas of TP4 and one of TP8, on the same eight devices."""
    for context, ratios in PAPER.items():
        for responses, ratio in zip(RESPONSES, ratios, strict=True):
            tp4 = responses / (8 * tp4_step_s(responses / 2, context))
            first = ("rollout", 2, 4, 1, 1, context, responses)
            if ratio is None:
                yield (*first, "oom", "paper: out of memory")
                ratio = PAPER[context // 2][RESPONSES.index(responses)]
                assert ratio is not None  # the paper has one at half the length
                source = "formula, with the paper's ratio at half the length"
            else:
                yield (*first, f"{tp4:.4g}", "formula")
                source = f"formula and the paper's {ratio} %"
            rate = tp4 * (1 + ratio / 100)
            yield ("rollout", 1, 8, 1, 1, context, responses, f"{rate:.4g}", source)


def tp4_step_s(sequences: float, context: int) -> float:
    """Seconds of a decoding step of Qwen2.5-72B in bfloat16 on 4 devices that read 3.35 TB/s: 36 GB of
    weights with a millisecond for launches, then for each sequence its products and 82 KB of KV a token."""
    return 0.012 + sequences * (90e-6 + context * 24.5e-9)


# Lengths and sequences of a replica, for the table of ours.
LENGTHS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
SHARES = (1, 2, 4, 8, 16, 32, 64, 128)
# By tp, the length at which a sequence is out of memory, on four devices.
OUT_OF_MEMORY = {1: 192, 2: 384}


def slow_link() -> Iterator[Row]:
    """Four devices for rollout, as dp4, dp2·tp2 or tp4, and four for the trainer, as dp4, dp2·cp2 or cp4."""
    for tp in (1, 2, 4):
        for length in LENGTHS:
            first = ("rollout", 4 // tp, tp, 1, 1, length)
            if length == OUT_OF_MEMORY.get(tp):
                yield (*first, 4 // tp, "oom", "formula")
            if length >= OUT_OF_MEMORY.get(tp, 1 << 30):
                continue
            for share in SHARES:
                rate = share / (tp * decode_s(tp, share, length))
                yield (*first, 4 // tp * share, f"{rate:.4g}", "formula")
    for cp in (1, 2, 4):
        for length in LENGTHS:
            rate = train_rate(cp, length)
            yield ("trainer", 4 // cp, 1, cp, 1, length, 4 // cp * 16, f"{rate:.4g}", "formula")


def decode_s(tp: int, sequences: int, length: int) -> float:
    """Seconds of a decoding step: weights, a sequence's products and its KV are split over tp; the link costs
    a delay for each doubling of tp, and what an all-reduce moves for each sequence."""
    split_ms = (60 + 4 * sequences + 0.02 * sequences * length) / tp
    link_ms = 12 * (tp.bit_length() - 1) + 3 * sequences * (tp - 1) / tp
    return (split_ms + link_ms) / 1e3


def train_rate(cp: int, length: int) -> float:
    """Tokens a second that a device of the trainer does: exchanging keys and values costs cp a delay for each
    sequence, and attention's own time grows with the length, split over cp."""
    token_s = 1 / 400 * (1 + length / 1024)
    return 1 / (token_s + 0.012 * (cp - 1) / length)


def compute_bound() -> Iterator[Row]:
    """Eight devices that change between rollout and trainer, each with a whole model: computation alone
    bounds them, so that a stage of twice as many is twice as quick. A token of the trainer costs more the
    longer its sequence is, and one of rollout does not: long prompts are work for the trainer, long answers
    for rollout."""
    for length in LENGTHS:
        for share in SHARES[3:]:
            yield ("rollout", 8, 1, 1, 1, length, 8 * share, "550", "formula")
        yield ("trainer", 8, 1, 1, 1, length, 8 * 16, f"{10_200 / (1 + length / 64):.4g}", "formula")


# Long sequences slow a replica down once they are longer than so many tokens, by its number of devices.
ROOMY = {1: 256, 2: 1024}
# The part of its speed that a device has in such a replica.
ALONE = {1: 1.0, 2: 0.7}


def long_wide() -> Iterator[Row]:
    """Eight devices that change between rollout and trainer, as replicas of one device or two. Exchanging
    with the other costs a device of two 30 % of its speed; sequences longer than a replica has space for are
    computed in parts, which costs more the longer they are."""
    for wide in (1, 2):
        for length in LENGTHS:
            factor = ALONE[wide] / (1 + (length / ROOMY[wide]) ** 2)
            for share in SHARES[3:]:
                first = ("rollout", 8 // wide, wide, 1, 1, length)
                yield (*first, 8 // wide * share, f"{400 * factor:.4g}", "formula")
            rate = 16_000 / (1 + length / 64) * factor
            yield ("trainer", 8 // wide, 1, wide, 1, length, 8 // wide * 16, f"{rate:.4g}", "formula")


TEXTS = {"fig3": fig3, "slow-link": slow_link, "compute-bound": compute_bound, "long-wide": long_wide}


def main() -> int:
    differing = 0
    for name, rows in TEXTS.items():
        path, text = TABLES / f"{name}.csv", text_of(COLUMNS, rows())
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--write" in sys.argv[1:]:
            path.write_text(text, encoding="utf-8")
        else:
            sys.stderr.write(f"{path} differs from its formula; python tools/pace_tables.py --write\n")
            differing += 1
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
