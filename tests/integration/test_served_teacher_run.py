"""Whole runs with a served teacher: its column is a local teacher's, and its end is the requests' end."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from earl.models.spec import SPECIALS
from tests.integration.test_teacher_run import LEARNS_FAST, TEACHER, trained
from tests.support.completions_server import completions_server
from tests.support.launched import assert_ledger_adds_up, launch_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOKENS = [*SPECIALS, *TEACHER.words]


def test_a_policy_comes_near_a_served_teacher_which_is_asked_no_more_at_its_end(tmp_path: Path) -> None:
    with completions_server(tmp_path, TOKENS) as server, launch_in(tmp_path, forked=True) as run:
        run.start(
            teacher__url=server.url(), teacher__until="35", warmup__batches="1", scheduler__steps="60",
            scheduler__temperature="1", scheduler__train_limit_s="0", evaluation__episodes="0",
            **LEARNS_FAST,
        )  # fmt: skip
        run.until(r"teacher done")
        asked = len(server.requests())
        run.until(r"train \d+/60")  # and the run continues
        code, figures = run.finish()
        assert code == 0, run.said
        assert len(server.requests()) == asked
        steps = trained(run)
        assert [step["step"] for step in steps] == list(range(1, 61))
        taught = [step for step in steps if step["version"] <= 35]
        assert all(step["teacher_weight"] == 1.0 for step in taught)
        # A token that the teacher hardly writes makes the KL of a batch an outlier.
        first, last = (median(step["kl_teacher"] for step in part) for part in (taught[:8], taught[-8:]))
        assert last < 0.85 * first, (first, last)
        assert all(step["teacher_weight"] == step["kl_teacher"] == 0 for step in steps[len(taught) :])
        # One request for each trajectory that was trained with it, and what was ready when it ended.
        sequences = 16 * len(taught)
        assert sequences <= asked <= sequences + 3 * 16 + 2
        record = json.loads((run.run_directory / "teacher" / "served.json").read_text())
        assert record == {"url": server.url(), "model": "table"}
        assert_ledger_adds_up(figures)
        run.assert_nothing_left()


def test_a_policy_that_is_better_than_a_served_teacher_asks_it_no_more(tmp_path: Path) -> None:
    with completions_server(tmp_path, TOKENS) as server, launch_in(tmp_path, forked=True) as run:
        run.start(
            teacher__url=server.url(), teacher__wean="true", teacher__score="-1.5",
            environment__reward_range="[-2, 1]", warmup__batches="1", scheduler__steps="30",
            scheduler__temperature="1", evaluation__episodes="0",
        )  # fmt: skip
        run.until(r"teacher done")
        asked = len(server.requests())
        run.until(r"train \d+/30")
        code, _ = run.finish()
        assert code == 0, run.said
        assert len(server.requests()) == asked
        steps = trained(run)
        assert len(steps) == 30
        assert all(step["teacher_weight"] == step["kl_teacher"] == 0 for step in steps)
        run.assert_nothing_left()


def test_a_server_that_is_lost_ends_the_run_with_its_url_and_the_run_is_resumed(tmp_path: Path) -> None:
    with completions_server(tmp_path, TOKENS) as server, launch_in(tmp_path, forked=True) as run:
        keys = {
            "teacher__requests": "4", "teacher__request_s": "5", "warmup__batches": "1",
            "scheduler__steps": "60", "scheduler__train_limit_s": "0", "scheduler__temperature": "1",
            "evaluation__episodes": "0", "stack__restarts": "0",
        }  # fmt: skip
        run.start(teacher__url=server.url(), **keys)
        run.until(r"train [1-9]\d*/60")
        server.stop()
        code, figures = run.finish()
        assert code == 11 and not figures, run.said
        assert f"{server.url()}/completions cannot be reached" in run.said
        done = len(trained(run))
        assert 1 <= done < 60
        run.assert_nothing_left()
        with completions_server(tmp_path, TOKENS) as again:
            restored = run.run_directory / "run.toml"
            restored.write_text(restored.read_text().replace(server.url(), again.url()))
            run.resume()
            code, figures = run.finish()
            assert code == 0, run.said
            steps = trained(run)
            assert steps[-1]["step"] == 60 and all(step["teacher_weight"] == 1.0 for step in steps)
            assert np.isfinite([step["kl_teacher"] for step in steps]).all()
            assert_ledger_adds_up(figures)
            run.assert_nothing_left()


def test_a_server_with_another_tokenizer_ends_the_launch(tmp_path: Path) -> None:
    with completions_server(tmp_path, TOKENS[::-1]) as server, launch_in(tmp_path, forked=True) as run:
        run.start(teacher__url=server.url(), scheduler__temperature="1")
        code, figures = run.finish()
        assert code == 2 and not figures, run.said
        assert f"teacher.url = '{server.url()}' has another tokenizer than the trained model" in run.said
        run.assert_nothing_left()
