"""The weight of the entropy of Box actions, which falls as the inverse of the steps that were learned from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes

import agilerl
from agilerl.algorithms import PPO
from agilerl.config import apply_overrides, manifest_from

OBS, BOX = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))


def agent(space: gym.Space[Any] = BOX, **more: Any) -> PPO:
    return PPO(OBS, space, seed=1, ent_coef=0.02, **{"action_ent_steps": 1000, **more})


@pytest.mark.parametrize(("learned", "weight"), [(0, 0.02), (999, 0.02), (1000, 0.02), (2000, 0.01), (4000, 0.005)])
def test_it_falls_as_the_inverse_of_the_steps(learned: int, weight: float) -> None:
    ppo = agent()
    ppo.learned_steps = learned
    assert ppo.update_hyperparameters()["ent_coef"] == pytest.approx(weight)
    assert ppo.hyperparameters()["ent_coef"] == 0.02, "records show what was configured, which mutation changes"


def test_actions_of_other_kinds_keep_it_and_so_does_none() -> None:
    for ppo in (agent(gym.spaces.Discrete(3)), agent(action_ent_steps=None)):
        ppo.learned_steps = 10**6
        assert ppo.update_hyperparameters()["ent_coef"] == 0.02


def test_it_is_a_count_above_zero() -> None:
    with pytest.raises(agilerl.errors.AlgorithmError, match="action_ent_steps must be an integer of at least 1"):
        agent(action_ent_steps=0)


class Nothing(Episodes):
    """Single steps without a reward: what moves the policy is the entropy alone."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Box(-1, 1, (1,))

    def reward(self, action: Any) -> float:
        return 0.0


def trained(steps: int | None, **more: Any) -> Any:
    manifest = manifest_from({
        "algorithm": {"name": "PPO", "lr": 3e-3, "learn_step": 128, "batch_size": 64, "ent_coef": 0.1, "vf_coef": 0.0,
                      "action_ent_steps": steps},
        "environment": {"num_envs": 4}, "training": {"max_steps": 1024, "pop_size": 2, "evo_steps": 1024},
    })  # fmt: skip
    return agilerl.train(Nothing, config=manifest, seed=3, out=None, verbose=False, evolution=False, **more)


@pytest.mark.thorough
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_rollouts_of_one_generation_learn_by_less_and_less(learner: str) -> None:
    """Eight rollouts without an evaluation between them; with a constant weight the policy goes on widening."""

    def width(run: Any) -> float:
        return float(run.population[0].get_action(np.zeros((4000, 1), np.float32), training=True)[0].std())

    constant, falling = trained(None, learner=learner), trained(1, learner=learner)
    assert [each.learned_steps for each in constant.population] == [1024, 1024]
    assert width(constant) > 1.05 * width(falling), "the clipped actions of the wider policy lie further apart"


def test_copies_and_saved_members_go_on_counting() -> None:
    ppo = agent()
    ppo.learned_steps = 3000
    assert ppo.clone().entropy_weight == pytest.approx(0.02 / 3)
    other = agent()
    other.load_run_state(ppo.run_state())
    assert other.learned_steps == 3000


def test_a_manifest_without_it_keeps_its_hash() -> None:
    manifest = manifest_from({"algorithm": {"name": "PPO"}})
    assert apply_overrides(manifest, {"algorithm.action_ent_steps": None}, "test").hash() == manifest.hash()
    assert apply_overrides(manifest, {"algorithm.action_ent_steps": 9}, "test").hash() != manifest.hash()
