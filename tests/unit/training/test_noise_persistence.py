"""Noise of Box actions that persists: what is drawn, who draws it, and where there is none."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes

import agilerl
from agilerl.algorithms import PPO
from agilerl.api import build_manifest
from agilerl.config import Manifest, apply_overrides, apply_sets, manifest_from, preset_for
from agilerl.core.texts import number
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.hpo.founders import share_at, value_at
from agilerl.hpo.operators import RLParameter
from agilerl.training.manifest.build import make_founders, of_restarts
from agilerl.training.manifest.environment_task import make_environments
from agilerl.training.manifest.tasks import task_of
from agilerl.utils.utils import make_vect_envs

OBS, BOX = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
RANGE, RESTARTS = "mutation.rl_hp_selection", "evolution.restart_ranges"
WRONG = {"noise_persistance": {"min": 0.1, "max": 0.2}}


STUCK: dict[str, Any] = {
    "max_steps": 8192, "evo_steps": 512, "evo_first": 512, "learn_step": 256, "batch_size": 64, "patience": 4,
    "target_score": 0.5, "stop_errors": 0.0, "confirm_episodes": 8, "confirm_screen": 0, "confirm_most": 8,
}  # fmt: skip


class Far(Episodes):
    """A line on which the goal is 18 steps of length 1 away, and each step costs a little. Forty steps of independent
    noise of deviation 0.6 lead 3.8 away in the root mean square."""

    observation_space = gym.spaces.Box(-2, 2, (2,))
    action_space = gym.spaces.Box(-1, 1, (1,))

    def observe(self) -> np.ndarray:
        self.place = self.place if self.age else 0.0
        return np.array([self.place / 18, self.age / 40], np.float32)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place, self.age = self.place + float(action[0]), self.age + 1
        is_there = abs(self.place) >= 18
        return self.observe(), float(is_there) - 0.001 * float(action[0]) ** 2, is_there, self.age >= 40, {}


def agent(kept: float, space: gym.Space[Any] = BOX) -> PPO:
    return PPO(OBS, space, seed=1, noise_persistence=kept)


def drawn(kept: float, *shape: int) -> np.ndarray:
    return agent(kept).draw_exploration(np.random.default_rng(5), shape)[0]


def test_noise_goes_on_from_the_step_before() -> None:
    fresh, noise = drawn(0.0, 3, 4), drawn(0.6, 3, 4)
    assert np.array_equal(fresh, np.random.default_rng(5).standard_normal((3, 4, 2)))
    assert np.array_equal(noise[0], fresh[0])
    np.testing.assert_allclose(noise[1], 0.6 * fresh[0] + 0.8 * fresh[1], rtol=1e-12)
    np.testing.assert_allclose(noise[2], 0.36 * fresh[0] + 0.48 * fresh[1] + 0.8 * fresh[2], rtol=1e-12)


@pytest.mark.parametrize("kept", [0.0, 0.6, 0.95, 1.0])
def test_each_step_is_standard_normal_and_neighbours_correlate_by_as_much(kept: float) -> None:
    noise = drawn(kept, 20, 4000)  # [T, E, A], 8,000 independent sequences
    np.testing.assert_allclose(noise.std((1, 2)), 1.0, atol=0.04)  # five standard errors: 5 / sqrt(2 * 8000)
    for apart in (1, 3):
        product = (noise[apart:] * noise[:-apart]).mean((1, 2))
        np.testing.assert_allclose(product, kept**apart, atol=0.06)


def test_calls_one_after_the_other_draw_the_same_sequence() -> None:
    """Actions less their mean over the deviation are the noise; as many lanes as before go on, others begin anew."""
    ppo, obs = agent(0.9), np.zeros((500, 3), np.float32)
    mean = ppo.get_action(obs, training=False)[0][0]
    first, second = (ppo.get_action(obs)[0] - mean for _ in range(2))
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.85
    assert ppo.get_action(obs[:7])[0].shape == (7, 2)
    white = agent(0.0)
    first, second = (white.get_action(obs)[0] - mean for _ in range(2))
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.15


def test_probabilities_are_those_of_each_action_by_itself() -> None:
    ppo, obs = agent(0.9), np.random.default_rng(0).uniform(-1, 1, (50, 3)).astype(np.float32)
    for _ in range(2):
        action, log_prob, _, _ = ppo.get_action(obs)
    again, _, _ = ppo.evaluate_actions(obs, action)
    np.testing.assert_allclose(log_prob, again.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_it_survives_copies_and_is_shown_among_what_evolution_may_change() -> None:
    assert agent(0.9).clone().noise_persistence == 0.9
    limits = RLParameter(min=0.5, max=0.98)
    # On the scale of 1 - x: half of the way from 1/2 to 1/50 is 1/10.
    assert value_at("noise_persistence", limits, 0.5) == pytest.approx(0.9)
    assert share_at("noise_persistence", limits, 0.9) == pytest.approx(0.5)


def test_discrete_actions_have_none() -> None:
    with pytest.raises(AlgorithmError, match="noise_persistence is of Box actions, and these are Discrete"):
        agent(0.5, gym.spaces.Discrete(2))


def founders(env: str, is_restart: bool, **changes: Any) -> tuple[Manifest, list[PPO]]:
    """The manifest of the general preset in an environment, and those who begin a run or a restart of it."""
    manifest = task_of(apply_overrides(build_manifest(env, preset=False), changes, "test")).resolve(None)
    with_ranges = of_restarts(manifest) if is_restart else manifest
    made = make_environments(manifest, None, make_vect_envs)
    try:
        return manifest, make_founders(with_ranges, None, made[0], "cpu", 3)
    finally:
        for each in made:
            each.close()


def test_founders_of_a_restart_differ_in_it_where_actions_are_box() -> None:
    manifest, first = founders("Pendulum-v1", False)
    assert [agent.noise_persistence for agent in first] == [0.0] * 4
    assert [*manifest.evolution.restart_ranges] == ["gamma", "noise_persistence"]
    _, later = founders("Pendulum-v1", True)
    kept = [agent.noise_persistence for agent in later]
    assert kept[0] == 0.0
    assert len({*kept}) == 4
    assert all(0.0 < value <= 0.95 for value in kept[1:])
    assert [agent.ent_coef for agent in first] == [agent.ent_coef for agent in later], (
        "the other draws are as without it"
    )
    assert max(agent.gamma for agent in first) <= 0.998 < max(agent.gamma for agent in later) <= 0.9999
    assert "noise_persistence" in later[1].hyperparameters()


def test_the_general_preset_leaves_it_out_where_they_are_not() -> None:
    manifest, later = founders("CartPole-v1", True)
    assert [*manifest.evolution.restart_ranges] == ["gamma"]
    assert [agent.noise_persistence for agent in later] == [0.0] * 4


@pytest.mark.parametrize(
    ("key", "error", "said"),
    [
        (RANGE, AlgorithmError, "PPO: noise_persistence is of Box actions, and these are Discrete"),
        (RESTARTS, ConfigError, r"\.noise_persistence is of Box actions; got Discrete\(2\)\. fix: leave it out\.$"),
    ],
)
def test_a_range_of_the_users_own_is_refused_where_they_are_not(key: str, error: type, said: str) -> None:
    with pytest.raises(error, match=said):
        founders("CartPole-v1", False, **{key: {"noise_persistence": {"min": 0.1, "max": 0.2}}})


def test_ranges_of_restarts_name_hyperparameters() -> None:
    with pytest.raises(
        ConfigError, match=r"evolution\.restart_ranges\.noise_persistance is not a hyperparameter of PPO"
    ):
        manifest_from({"env_id": "Pendulum-v1", "algo": "PPO", "evolution": {"restart_ranges": WRONG}}, "test")


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("evolution.restart_ranges.noise_persistance.max", "Did you mean 'noise_persistence'?"),
        ("mutation.rl_hp_selection.gama.max", "Did you mean 'gamma'?"),
        ("mutation.rl_hp_selection.vf_coef.max", "vf_coef.min is missing"),
    ],
)
def test_a_misspelt_range_is_told_its_name_before_its_bound(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        apply_sets(preset_for("Pendulum-v1", "PPO", general=True), [f"{key}=0.9"])


@pytest.mark.parametrize("seed", [2, 3])
@pytest.mark.parametrize("persists", [True, False])
def test_a_stuck_run_finds_what_noise_of_each_step_by_itself_does_not(persists: bool, seed: int) -> None:
    settings: dict[str, Any] = {**STUCK, **({} if persists else {RESTARTS: {}})}
    run = agilerl.train(Far, "PPO", preset=False, seed=seed, out=None, verbose=False, **settings)
    anew = {birth.id for birth in run.lineage if birth.path == "restart"}
    assert anew, "the first founders found nothing"
    assert run.result["stopped"] == ("target" if persists else "budget")
    if persists:
        assert run.best.index in anew
        assert run.best.noise_persistence > 0.5
        assert f"noise_persistence {number(run.best.noise_persistence)}" in run.in_words()


def test_a_manifest_without_it_keeps_the_hash_of_before() -> None:
    manifest = apply_overrides(preset_for("LunarLander-v3", "PPO"), {"training.confirm_screen": 32}, "test")
    assert manifest.hash() == "8a4bba39d2d23a04"  # as of a version that did not know it, whose preset had the screen
    assert apply_overrides(manifest, {"algorithm.noise_persistence": 0.5}, "test").hash() != manifest.hash()
