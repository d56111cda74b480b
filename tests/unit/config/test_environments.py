"""Several environments in one run file: what is taken, what each resolves to, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from earl.config.load import load_run
from earl.config.mixture import host_plan, host_plans
from earl.config.protected import protected_kl
from earl.config.run import RunConfig
from earl.config.weight import weight_at
from earl.errors import ConfigError
from earl.stack.rundir import check_same_policy, to_toml
from services.scheduler.state.rules import rules_of

TWO = """
name = "two"
[[environments]]
name = "open_spiel/tic_tac_toe"
serve = "earl.env.adapters.open_spiel:environments"
weight = 3
group_size = 4
max_turns = 5
[[environments]]
name = "open_spiel/tic_tac_toe"
label = "as second player"
serve = "earl.env.adapters.open_spiel:environments"
task = { player = 1 }
max_new_tokens = 2
max_context_tokens = 64
"""

ONE = """
name = "one"
[environment]
name = "open_spiel/tic_tac_toe"
task = { player = 1 }
"""


def run_of(tmp_path: Path, text: str) -> RunConfig:
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    return load_run(tmp_path / "run.toml")


def test_each_entry_has_its_own_bounds_and_otherwise_the_runs(tmp_path: Path) -> None:
    config = run_of(tmp_path, TWO)
    first, second = config.mixture
    assert (first.label, second.label) == ("open_spiel/tic_tac_toe", "as second player")
    assert first.name == second.name == "open_spiel/tic_tac_toe"
    assert (first.share, second.share) == (0.75, 0.25)
    assert (first.group_size, second.group_size) == (4, config.scheduler.group_size)
    assert (first.max_turns, second.max_turns) == (5, config.scheduler.max_turns)
    assert (first.max_new_tokens, second.max_new_tokens) == (config.rollout.max_new_tokens, 2)
    assert (first.max_context_tokens, second.max_context_tokens) == (config.longest_sequence, 64)
    assert second.task == {"player": 1}
    assert config.batch_trajectories == config.scheduler.group_size * config.scheduler.batch_groups


def test_a_weight_may_have_a_schedule(tmp_path: Path) -> None:
    config = run_of(tmp_path, TWO.replace("weight = 3", "weight = [[0, 3], [10, 1.0]]"))
    first, second = config.mixture
    assert (first.share, second.share) == (0.75, 0.25)
    assert first.schedule == ((0, 0.75), (10, 0.25)) and second.schedule == ((0, 0.25),)
    (tmp_path / "again.toml").write_text(to_toml(config.model_dump(mode="json")), encoding="utf-8")
    assert load_run(tmp_path / "again.toml") == config


def test_a_weight_is_linear_between_its_steps_and_constant_beyond_them() -> None:
    schedule = ((2, 4.0), (6, 2.0), (7, 0.0))
    assert [weight_at(schedule, step) for step in range(9)] == [4, 4, 4, 3.5, 3, 2.5, 2, 0, 0]


def test_a_match_has_a_trajectory_for_each_seat(tmp_path: Path) -> None:
    config = run_of(tmp_path, ONE.replace("[environment]\n", "[environment]\nseats = 2\n"))
    [entry] = config.mixture
    assert entry.group_trajectories == 2 * config.scheduler.group_size
    assert config.batch_trajectories == entry.group_trajectories * config.scheduler.batch_groups
    assert config.warmup_trajectories == 2 * config.warmup.batch_episodes


def test_episodes_of_an_evaluation_take_its_tasks_in_turns(tmp_path: Path) -> None:
    laid = "evaluation_tasks = [{ player = 0 }, { player = 1 }]\n"
    [entry] = run_of(tmp_path, ONE.replace("[environment]\n", f"[environment]\n{laid}")).mixture
    assert [entry.evaluation_task(number)["player"] for number in range(5)] == [0, 1, 0, 1, 0]
    [plain] = run_of(tmp_path, ONE).mixture
    assert plain.evaluation_task(3) == {}


def test_entries_of_one_target_share_its_hosts(tmp_path: Path) -> None:
    config = run_of(tmp_path, TWO.replace("weight = 3", "weight = 3\nhosts = 2\nsessions_per_host = 7"))
    (plan,) = host_plans(config.mixture)
    assert (plan.hosts, plan.sessions, plan.names) == (2, 7, ("open_spiel/tic_tac_toe",))
    assert host_plan(config.mixture, "") == plan
    with pytest.raises(
        ConfigError, match=r"--serve 'other:thing' is no serve of the run file's environments"
    ):
        host_plan(config.mixture, "other:thing")


def test_one_table_is_a_mixture_of_one(tmp_path: Path) -> None:
    config = run_of(tmp_path, 'name = "one"\n[environment]\nname = "a/b"\n')
    (entry,) = config.mixture
    assert (entry.label, entry.share, entry.group_size) == ("a/b", 1.0, config.scheduler.group_size)


def test_a_run_file_is_written_as_it_was_read(tmp_path: Path) -> None:
    config = run_of(tmp_path, TWO)
    (tmp_path / "again.toml").write_text(to_toml(config.model_dump(mode="json")), encoding="utf-8")
    assert load_run(tmp_path / "again.toml") == config


def test_a_character_that_toml_refuses_is_written_escaped(tmp_path: Path) -> None:
    config = run_of(tmp_path, TWO.replace("{ player = 1 }", '{ prompt = "a\\u007fb" }'))
    assert config.mixture[1].task == {"prompt": "a\x7fb"}
    (tmp_path / "again.toml").write_text(to_toml(config.model_dump(mode="json")), encoding="utf-8")
    assert load_run(tmp_path / "again.toml") == config


ENTRY = '[[environments]]\nname = "a/b"\n'
PROTECTED = ENTRY + "protected = true\nreward_range = [-1, 1]\n"
REFUSED = {
    "both forms": (
        '[environment]\nname = "c"\n' + ENTRY,
        r"\[environment\] \(c\) and \[\[environments\]\] \(a/b\) are both given",
    ),
    "no environment": ("seed = 1\n", r"environment is missing; add the section \[environment\]"),
    "equal names": (
        ENTRY + ENTRY,
        r"two entries 'a/b'; give each a label of its own",
    ),
    "no weight": (
        ENTRY + ENTRY.replace("b", "c") + "weight = 0\n",
        r"weight = 0 of environment a/c: it would never be played; give a weight above 0",
    ),
    "a weight below 0": (
        ENTRY + "weight = -1.5\n",
        r"weight of \[\[environments\]\] 1 = -1\.5 is wrong; give a number, at least 0",
    ),
    "a weight that is not a number": (
        ENTRY + "weight = nan\n",
        r"weight of \[\[environments\]\] 1 = NaN is wrong; give a number, at least 0",
    ),
    **{
        f"a schedule {wrong}": (
            ENTRY + f"weight = {weight}\n",
            r"weight of \[\[environments\]\] 1 = .* is wrong; give a number, at least 0, or a list of \[",
        )
        for wrong, weight in {
            "of nothing": "[]",
            "with a weight below 0": "[[0, 1.0], [5, -1.0]]",
            "with a weight that is not a number": "[[0, nan]]",
            "whose steps descend": "[[5, 1.0], [0, 2.0]]",
            "with a step twice": "[[5, 1.0], [5, 2.0]]",
            "that is always 0": "[[0, 0.0], [5, 0.0]]",
            "with a part of a step": "[[0.5, 1.0]]",
            "without weights": "[0, 5]",
        }.items()
    },
    "no weight at a step": (
        ENTRY + "weight = [[0, 1], [5, 0]]\n" + ENTRY.replace("b", "c") + "weight = [[5, 0], [9, 1]]\n",
        r"the weights of all environments are 0 at step 5: there would be nothing to play; give one of them",
    ),
    "a curriculum of endless seeds": (
        ENTRY + 'order = "curriculum"\n',
        r'order = "curriculum" of environment a/b without tasks or instances: endless seeds never come back',
    ),
    "an unknown key": (
        ENTRY + "weigth = 2\n",
        r"there is no key weigth of \[\[environments\]\] 1; did you mean weight\?",
    ),
    "no name": (
        '[[environments]]\nlabel = "x"\n',
        r"name of \[\[environments\]\] 1 is missing",
    ),
    "a context beyond the run's": (
        ENTRY + "max_context_tokens = 100000\n[rollout]\nmax_context_tokens = 4096\n",
        r"max_context_tokens = 100000 of environment a/b exceeds rollout\.max_context_tokens = \d+",
    ),
    "no room for a prompt": (
        ENTRY + "max_context_tokens = 8\nmax_new_tokens = 8\n",
        r"max_new_tokens = 8 leaves environment a/b no prompt in max_context_tokens = 8",
    ),
    "no room for the run's answers": (
        ENTRY + "max_context_tokens = 8\n[rollout]\nmax_new_tokens = 16\n",
        r"rollout\.max_new_tokens = 16 leaves environment a/b no prompt in max_context_tokens = 8",
    ),
    "two targets of one name": (
        ENTRY + 'serve = "x:y"\n' + ENTRY + 'label = "other"\nserve = "x:z"\n',
        r"environment a/b has serve = 'x:y' and 'x:z': a gateway knows environments by name alone",
    ),
    "a name that no host can register": (
        '[[environments]]\nname = "a b"\n',
        r'name of \[\[environments\]\] 1 = "a b" is wrong; give a text that matches',
    ),
    "a key of rows without rows": (
        ENTRY + 'task_key = "id"\n',
        r"task_key = 'id' of environment a/b without tasks has no effect",
    ),
    "fewer episodes than environments": (
        ENTRY + ENTRY.replace("b", "c") + "[evaluation]\nepisodes = 1\n",
        r"1 episodes of an evaluation are fewer than the 2 environments",
    ),
    "fewer episodes than tasks of an evaluation": (
        ENTRY + "evaluation_tasks = [{ a = 1 }, { a = 2 }, { a = 3 }]\n[evaluation]\nepisodes = 2\n",
        r"2 episodes of an evaluation leave environment a/b some of its 3 evaluation_tasks unplayed",
    ),
    "no seat": (ENTRY + "seats = 0\n", r"seats of \[\[environments\]\] 1 = 0 is wrong"),
    "whole groups dropped for one truncated episode": (
        ENTRY + '[scheduler]\ntruncated = "drop"\n',
        r'scheduler\.truncated = "drop" without scheduler\.min_group_size would drop a whole group',
    ),
    "truncation by the clock in a deterministic run": (
        "deterministic = true\n"
        + ENTRY
        + '[scheduler]\ntimeout = "truncate"\nstaleness = 0\nselector = "static"\n',
        r'deterministic = true with scheduler\.timeout = "truncate"',
    ),
    "closing by the clock in a deterministic run": (
        "deterministic = true\n"
        + ENTRY
        + '[scheduler]\nextra_episodes = 2\nstaleness = 0\nselector = "static"\n',
        r"deterministic = true with scheduler\.extra_episodes = 2: which episodes .*; remove scheduler",
    ),
    "closing before each seat has learnt as often": (
        ENTRY + 'seats = 2\nopponent = "frozen"\n[scheduler]\nextra_episodes = 2\n',
        r'scheduler\.extra_episodes = 2 with opponent = "frozen" of environment a/b: how often each seat',
    ),
    "closing late groups by the clock in a deterministic run": (
        "deterministic = true\n"
        + ENTRY
        + '[scheduler]\nclose_groups = 1\nmin_group_size = 2\nstaleness = 0\nselector = "static"\n',
        r"deterministic = true with scheduler\.close_groups = 1: which episodes .*; remove scheduler\.close",
    ),
    "closing groups without a least size": (
        ENTRY + "[scheduler]\nclose_groups = 1\n",
        r"scheduler\.close_groups = 1 without scheduler\.min_group_size: nothing says with how many",
    ),
    "groups that are closed with no fewer episodes than they have": (
        ENTRY + "[scheduler]\nclose_groups = 1\ngroup_size = 4\nmin_group_size = 4\n",
        r"scheduler\.close_groups = 1 with scheduler\.min_group_size = 4: no group has more episodes",
    ),
    "a group of one": (
        ENTRY + "group_size = 1\n",
        r"group_size = 1 of environment a/b makes every advantage zero",
    ),
    "weights of 0 alone": (
        PROTECTED + "weight = 0\n",
        r"the weights of all environments are 0 at step 0: there would be nothing to play",
    ),
    "a protected environment without a range": (
        ENTRY + ENTRY.replace("b", "c") + "protected = true\n",
        r"environment a/c is protected and has no reward_range, from whose lower end its score counts",
    ),
    "the only environment, protected": (
        PROTECTED.replace("[[environments]]", "[environment]"),
        r"protected = true of the only environment a/b: nothing is added beside it",
    ),
    "a protected environment that nothing evaluates": (
        PROTECTED + "[evaluation]\nat_start = false\n",
        r"environment a/b is protected, and evaluation\.episodes, at_start, at_end or keep_best leaves",
    ),
    "a KL on tokens of no protected environment": (
        ENTRY + "[trainer]\nprotected_kl = 0.1\n",
        r"trainer\.protected_kl = 0\.1 without a protected environment whose tokens are trained on",
    ),
    "a KL on tokens of an environment that is evaluated alone": (
        PROTECTED + "weight = 0\n" + ENTRY.replace("b", "c") + "[trainer]\nprotected_kl = 0.1\n",
        r"trainer\.protected_kl = 0\.1 without a protected environment whose tokens are trained on",
    ),
    "a system message without a chat": (
        ENTRY + 'system = "Play."\n',
        r"system = 'Play\.' of environment a/b without model\.chat = true",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(tmp_path: Path, case: str) -> None:
    text, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as raised:
        run_of(tmp_path, f'name = "x"\n{text}')
    assert "\n" not in str(raised.value)


def test_a_protected_environment_may_be_evaluated_alone(tmp_path: Path) -> None:
    text = 'name = "x"\n' + PROTECTED + "weight = 0\n" + ENTRY.replace("b", "c")
    config = run_of(tmp_path, text)
    assert [entry.share for entry in config.mixture] == [0.0, 1.0]
    kept, added = rules_of(config).mixture
    assert (kept.protected, kept.lowest, added.protected) == (True, -1.0, False)


def test_only_protected_environments_need_the_reference_stage_for_their_kl(tmp_path: Path) -> None:
    text = 'name = "x"\n' + PROTECTED + ENTRY.replace("b", "c") + "[trainer]\nprotected_kl = 0.1\n"
    config = run_of(tmp_path, text)
    assert config.trainer.uses_reference and protected_kl(config) == {"a/b": 0.1}
    assert rules_of(config).reference_for == {"a/b"}
    both = run_of(tmp_path, text + "kl_coefficient = 0.01\n")
    assert rules_of(both).reference_for is None
    plain = run_of(tmp_path, text.replace("protected_kl", "kl_coefficient"))
    assert protected_kl(plain) == {} and plain.trainer.uses_reference
    assert rules_of(plain).reference_for is None


def test_an_override_cannot_reach_into_the_list(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TWO, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"--environments\.0\.weight: environments is not a table"):
        load_run(tmp_path / "run.toml", [("environments.0.weight", "2")])


def test_a_key_of_the_only_environment_is_none_of_several(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(TWO, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r"--environment\.hosts: the run file has \[\[environments\]\]; set it"
    ):
        load_run(tmp_path / "run.toml", [("environment.hosts", "2")])


def changed(config: RunConfig, **sections: Any) -> RunConfig:
    return RunConfig.model_validate(config.model_dump(mode="json") | sections)


def test_a_resumed_run_may_gain_environments_and_lose_none(tmp_path: Path) -> None:
    before = run_of(tmp_path, TWO)
    more = changed(before, environments=[*before.model_dump()["environments"], {"name": "a/b"}])
    check_same_policy(more, before)
    with pytest.raises(ConfigError, match=r"the name of environment 'a/b' differs"):
        check_same_policy(before, more)


def test_the_only_environment_of_a_run_stays_the_first(tmp_path: Path) -> None:
    before = run_of(tmp_path, 'name = "one"\n[environment]\nname = "a/b"\n')
    check_same_policy(run_of(tmp_path, 'name = "one"\n' + ENTRY + ENTRY.replace("b", "c")), before)
    with pytest.raises(ConfigError, match=r"begins with a/c, and the run that --resume would continue has"):
        check_same_policy(run_of(tmp_path, 'name = "one"\n' + ENTRY.replace("b", "c") + ENTRY), before)
