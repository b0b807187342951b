"""n-step and prioritised replay in the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.dqn_rainbow import RainbowDQN
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.config import apply_overrides, preset_for
from agilerl.errors import ConfigError
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

SIZE = 2_000


def train(memory: Any, learner: str = "auto", dtype: torch.dtype = torch.float32, **arguments: Any) -> list[DQN]:
    env = make_vect_envs("CartPole-v1", num_envs=4)
    pop = DQN.population(
        2,
        env.single_observation_space,
        env.single_action_space,
        seed=3,
        net_config={"latent_dim": 16, "encoder_config": {"hidden_size": [16]}},
        batch_size=16,
        learn_step=2,
        lr=1e-3,
    )
    for agent, size in zip(pop, (16, 24), strict=True):
        agent.batch_size = size
        agent.actor.to(dtype)
        agent.actor_target.to(dtype)
    settings = {"max_steps": 400, "evo_steps": 200, "learning_delay": 64, "verbose": False, "seed": 1}
    trained, _ = train_off_policy(env, "CartPole-v1", pop=pop, memory=memory, learner=learner, **settings, **arguments)
    return trained


def weights(agents: list[DQN]) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for a in agents for p in a.actor.parameters()])


KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "n-step": (lambda: {"memory": MultiStepReplayBuffer(SIZE, 3, 0.99)}, {"n_step": True}),
    "prioritised": (lambda: {"memory": PrioritizedReplayBuffer(SIZE)}, {"per": True}),
    "both in one": (
        lambda: {"memory": PrioritizedMultiStepReplayBuffer(SIZE, 3, 0.99)},
        {"per": True, "n_step": True},
    ),
    "both side by side": (
        lambda: {"memory": PrioritizedReplayBuffer(SIZE), "n_step_memory": MultiStepReplayBuffer(SIZE, 3, 0.99)},
        {"per": True, "n_step": True},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_both_learners_do_the_same_from_every_kind_of_memory(kind: str) -> None:
    make, arguments = KINDS[kind]
    one, other = (train(**make(), learner=name, dtype=torch.float64, **arguments) for name in ("fused", "sequential"))
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-9, atol=1e-9)
    uniform = train(ReplayBuffer(SIZE), learner="fused", dtype=torch.float64)
    assert not torch.allclose(weights(one), weights(uniform)), "the memory must make a difference"


def test_one_buffer_or_two_side_by_side_hold_and_teach_the_same() -> None:
    make, arguments = KINDS["both side by side"]
    side_by_side = make()
    single = KINDS["both in one"][0]()
    one, other = train(**side_by_side, **arguments), train(**single, **arguments)
    assert torch.equal(weights(one), weights(other))
    memory, n_step_memory = side_by_side["memory"], side_by_side["n_step_memory"]
    assert memory.counter == n_step_memory.counter == single["memory"].counter == 2 * 400
    rows = np.arange(len(memory))
    first, whole = memory.gather(rows), n_step_memory.gather(rows)
    assert torch.equal(first["obs"], whole["obs"])
    assert torch.equal(first["action"], whole["action"])
    assert set(whole["reward"].unique().tolist()) > {1.0}  # CartPole pays 1 a step: sums of up to three
    assert set(first["reward"].tolist()) == {1.0}


@pytest.mark.parametrize(
    ("memory", "arguments", "message"),
    [
        (ReplayBuffer(10), {"per": True}, "PrioritizedReplayBuffer"),
        (PrioritizedReplayBuffer(10), {}, "per=True"),
        (ReplayBuffer(10), {"n_step": True}, "no n-step memory"),
        (MultiStepReplayBuffer(10), {}, "n_step=True"),
        (ReplayBuffer(10), {"n_step_memory": MultiStepReplayBuffer(10)}, "n_step=True"),
        (ReplayBuffer(10), {"n_step": True, "n_step_memory": MultiStepReplayBuffer(20)}, "max_size"),
        (ReplayBuffer(10), {"n_step": True, "n_step_memory": ReplayBuffer(10)}, "MultiStepReplayBuffer"),
    ],
)
def test_memories_that_do_not_fit_what_is_asked_are_refused(memory: Any, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(memory, **arguments)


def rainbow(learner: str, **options: Any) -> tuple[list[RainbowDQN], PrioritizedReplayBuffer]:
    """Two members that learned from prioritised n-step replay, in float64, and their memory."""
    env = make_vect_envs("CartPole-v1", num_envs=4)
    pop = RainbowDQN.population(
        2, env.single_observation_space, env.single_action_space, seed=3, batch_size=16, learn_step=2, num_atoms=5,
        v_min=-10, v_max=10, net_config={"latent_dim": 16, "encoder_config": {"hidden_size": [16]}}, **options,
    )  # fmt: skip
    for agent, size, gamma in zip(pop, (16, 24), (0.9, 0.95), strict=True):
        agent.batch_size, agent.gamma = size, gamma
        agent.actor.double()
        agent.actor_target.double()
    memory = PrioritizedReplayBuffer(SIZE)
    train_off_policy(
        env, "CartPole-v1", pop=pop, memory=memory, n_step_memory=MultiStepReplayBuffer(SIZE, 3, 0.99), per=True,
        n_step=True, max_steps=160, evo_steps=160, learning_delay=64, verbose=False, seed=1, learner=learner,
    )  # fmt: skip
    return pop, memory


def test_combined_rewards_learn_from_each_row_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    update = RainbowDQN.update
    monkeypatch.setattr(RainbowDQN, "update", lambda self, engine, b: seen.append(b) or update(self, engine, b))
    written: list[tuple[Any, Any]] = []
    move = PrioritizedReplayBuffer.update_priorities
    monkeypatch.setattr(
        PrioritizedReplayBuffer, "update_priorities", lambda self, i, p: written.append((i, p)) or move(self, i, p)
    )
    rainbow("fused", combined_reward=True, noisy=False)
    assert seen
    for batch in seen:
        assert batch.reward.shape == (2, 48), "one-step transitions, then n-step ones, of the widest member"
        for name in ("obs", "action", "weight"):
            first, later = getattr(batch, name).split(24, 1)
            assert torch.equal(first, later)
        gamma = torch.tensor([[0.9], [0.95]], dtype=torch.float64)
        torch.testing.assert_close(batch.discount[:, :24], gamma * (1 - batch.done[:, :24]))
        assert set(batch.reward[:, :24].unique().tolist()) == {1.0}
    assert max(float(batch.reward[:, 24:].max()) for batch in seen) == pytest.approx(1 + 0.99 + 0.99**2)
    assert {p.shape[-1] for _, p in written} == {16, 24}, "one priority a row: the sum of both errors"


def test_combined_rewards_are_the_same_on_both_learners_and_matter() -> None:
    (one, _), (other, _) = (rainbow(name, combined_reward=True) for name in ("fused", "sequential"))
    torch.testing.assert_close(weights(one), weights(other), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(weights(one), weights(rainbow("fused")[0]))


def test_combined_rewards_need_both_kinds_of_transition() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agent = RainbowDQN(env.single_observation_space, env.single_action_space, combined_reward=True, seed=0)
    with pytest.raises(ConfigError, match=r"combined_reward=True learns from one-step and n-step.*fix: n_step=True"):
        train_off_policy(env, "CartPole-v1", pop=[agent], memory=ReplayBuffer(10), verbose=False)
    assert agent.steps == [0]


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("mutation.rl_hp_selection", {"gamma": {"min": 0.9, "max": 0.999}}),
        ("evolution.restart_ranges", {"gamma": {"min": 0.9, "max": 0.999}}),
        ("evolution.schedule", [{"env_steps": 8, "kind": "rl_hp", "path": "lr, gamma", "after": {"gamma": 0.9}}]),
    ],
)
def test_gamma_changes_nowhere_over_rewards_that_are_summed_by_one(section: str, value: Any) -> None:
    usual = {"training.pop_size": 1, "mutation.rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}}}
    sets = {"replay_buffer.n_step": 3, **usual, section: value}
    with pytest.raises(
        ConfigError, match=rf"which {section} would change\. fix: take gamma out of {section}, or leave"
    ):
        apply_overrides(preset_for("CartPole-v1", "DQN"), sets)
