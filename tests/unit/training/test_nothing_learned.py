"""A run in which nothing was learned says so, and why; one in which anything was does not."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

import agilerl
from agilerl.algorithms import find_algorithm
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AgileRLWarning
from agilerl.telemetry.record import BaseSink
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

GIVEN: dict[str, Any] = {
    "preset": False, "population": 2, "steps": 64, "evo_steps": 32, "num_envs": 2, "batch_size": 8, "latent_dim": 8,
    "eval_episodes": 1, "eval_steps": 20, "confirm_episodes": 0, "target_score": None, "evolution": False,
    "founders": "equal", "verbose": False,
}  # fmt: skip
REPLAY = {"algo": "DQN", "learn_step": 4, "learning_delay": 8}
CASES = {
    "no update": ({**REPLAY, "learning_delay": 10**8}, "No update was made, so nothing was learned."),
    "no weight": ({**REPLAY, "lr": 1e-30}, "No weight has changed, so nothing was learned."),
    "learned": (REPLAY, None),
    "learned from rollouts": ({"algo": "PPO", "learn_step": 16}, None),
    "learned by one": ({**REPLAY, "lr": 1e-30, "founders": "spread",
                        "mutation.rl_hp_selection": {"lr": {"min": 1e-30, "max": 1e-2}}}, None),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_closing_paragraph_says_that_nothing_was_learned(case: str, tmp_path: Path) -> None:
    settings, said = CASES[case]
    run = agilerl.train("CartPole-v1", out=tmp_path, **{**GIVEN, **settings})
    words = run.in_words()
    if said is None:
        assert "so nothing was learned" not in words
        assert "unchanged" not in run.result
        assert run.result["updates"] > 0
    else:
        assert said in words
        assert run.result["unchanged"]
    loaded = agilerl.load(run.path)
    assert (said is None) == ("so nothing was learned" not in loaded.in_words())


REPLAYED = [
    ("DQN", "CartPole-v1"), ("RainbowDQN", "CartPole-v1"), ("SAC", "Pendulum-v1"), ("TD3", "Pendulum-v1"),
    ("DDPG", "Pendulum-v1"), ("MADDPG", "mpe2.simple_spread_v3"), ("MATD3", "mpe2.simple_spread_v3"),
]  # fmt: skip


@pytest.mark.parametrize(("algo", "env"), REPLAYED)
def test_a_learn_step_beyond_the_budget_is_said(algo: str, env: str) -> None:
    """A generation begins with an update once the memory holds a batch: one of each member in the second."""
    settings = {**GIVEN, "algo": algo, "learn_step": 10**6, "learning_delay": 0, "eval_steps": 5}
    said = agilerl.train(env, out=None, **settings).in_words()
    assert "Only 2 updates were made, at most one of each member in a generation, so next to nothing was" in said
    assert said.endswith("Next: a smaller learn_step, learning_delay or batch_size.")
    first = agilerl.train(env, out=None, **{**settings, "steps": 32}).in_words()
    assert "No update was made, so nothing was learned." in first


NO_UPDATE = "make no update within the budget"
BUDGETS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a batch": ("DQN", "CartPole-v1", {"population": 1, "batch_size": 64}),
    "one row less": ("DQN", "CartPole-v1", {"population": 1, "batch_size": 65}),
    "two members": ("DQN", "CartPole-v1", {"batch_size": 128}),
    "two members, one row less": ("DQN", "CartPole-v1", {"batch_size": 129}),
    "a delay": ("DQN", "CartPole-v1", {"learning_delay": 127}),
    "a delay of all steps": ("DQN", "CartPole-v1", {"learning_delay": 128}),
    "once in a generation": ("DQN", "CartPole-v1", {"learn_step": 10**6, "batch_size": 68}),
    "after its start": ("DQN", "CartPole-v1", {"learn_step": 10**6, "batch_size": 69}),
    "between": ("DQN", "CartPole-v1", {"learn_step": 20, "batch_size": 108}),
    "between, one row less": ("DQN", "CartPole-v1", {"learn_step": 20, "batch_size": 109}),
    "short generations": ("DQN", "CartPole-v1", {"evo_steps": 20, "batch_size": 128}),
    "shards": ("DQN", "CartPole-v1", {"shards": 2, "batch_size": 92}),
    "shards, one row less": ("DQN", "CartPole-v1", {"shards": 2, "batch_size": 93}),
    "replay of shards": ("DQN", "CartPole-v1", {"shards": 2, "share": "shard", "batch_size": 65}),
    "Rainbow": ("RainbowDQN", "CartPole-v1", {"batch_size": 4096}),
    "SAC": ("SAC", "Pendulum-v1", {"batch_size": 4096}),
    "TD3": ("TD3", "Pendulum-v1", {"learning_delay": 5000}),
    "MADDPG": ("MADDPG", "mpe2.simple_spread_v3", {"batch_size": 4096}),
    "MATD3": ("MATD3", "mpe2.simple_spread_v3", {"learning_delay": 5000}),
    "bandit": ("NeuralUCB", "bandit/iris", {"batch_size": 4096}),
    "one after another": ("DQN", "CartPole-v1", {"lockstep": False, "learning_delay": 127}),
}


@pytest.mark.parametrize("case", BUDGETS)
def test_a_budget_that_reaches_no_update_is_known_before_the_first_step(case: str) -> None:
    """64 steps of each of two members, in two environments and two generations; where one makes an update, no word."""
    algo, env, more = BUDGETS[case]
    if env.startswith("bandit"):
        pytest.importorskip("sklearn")
    told: list[bool] = []

    class Told(BaseSink):
        def start(self, plan: Any, founders: Any) -> None:
            told.append(any(NO_UPDATE in str(one.message) for one in caught))

    settings = {**GIVEN, "algo": algo, "learning_delay": 0, "learn_step": 1, "eval_steps": 5, **more}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = agilerl.train(env, out=None, sinks=[Told()], **settings)
    assert told == [run.result["updates"] == 0], [str(one.message) for one in caught]
    assert sum(NO_UPDATE in str(one.message) for one in caught) == told[0]


def test_weights_that_change_in_a_later_generation_have_changed_in_a_resumed_run_too(tmp_path: Path) -> None:
    """The memory holds too few transitions in the first generation, and is learned from in the second one."""
    given = {**GIVEN, **REPLAY, "learning_delay": 100}
    first = agilerl.train("CartPole-v1", out=tmp_path, **{**given, "steps": 32})
    assert first.result["unchanged"]
    assert first.result["updates"] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AgileRLWarning)  # it goes on with another budget
        second = agilerl.resume(first.path, steps=96, verbose=False)
    assert second.result["updates"] > 0
    assert "unchanged" not in second.result


@pytest.mark.parametrize(("algo", "env"), [("PPO", "CartPole-v1"), ("IPPO", "mpe2.simple_spread_v3")])
def test_rollouts_of_one_step_are_warned_of(algo: str, env: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agilerl.errors._warned", set())
    given = {**GIVEN, "algo": algo, "num_envs": 1, "learn_step": 1, "steps": 4, "evo_steps": 4}
    with pytest.warns(AgileRLWarning, match=rf"{algo}: a rollout of one step .*fix: learn_step=128"):
        agilerl.train(env, out=None, **given)


@pytest.mark.parametrize(("delay", "lr", "said"), [(10**6, 1e-3, "no update was made"), (0, 1e-30, "no weight has")])
def test_published_functions_warn(delay: int, lr: float, said: str) -> None:
    published(said, lr, learning_delay=delay)


def test_published_functions_warn_of_a_learn_step_beyond_the_budget() -> None:
    published("only 2 updates of all members were made", 1e-3, learn_step=10**6, so="next to nothing")


def published(said: str, lr: float, learn_step: int = 4, so: str = "nothing", **more: Any) -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agents = find_algorithm("DQN").population(
        2, env.single_observation_space, env.single_action_space, seed=0, batch_size=8, lr=lr, learn_step=learn_step
    )
    with pytest.warns(AgileRLWarning, match=f"train_off_policy: {said}.* so {so} was learned"):
        train_off_policy(
            env, "CartPole-v1", "DQN", agents, ReplayBuffer(100), max_steps=64, evo_steps=32, eval_steps=20, seed=0,
            verbose=False, **more,
        )  # fmt: skip
    env.close()
