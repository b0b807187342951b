"""Small rules by hand, each of which could be broken once without a test that noticed."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from agilerl.algorithms import BC, DQN, SAC, SFT, TD3
from agilerl.algorithms.base.actions import uniform_actions
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.engine.learner import Group, HiddenStates
from agilerl.envs.observed_masks import split_mask
from agilerl.hpo import architecture, effects
from agilerl.hpo.architecture import ArchitectureOptions
from agilerl.hpo.effects import Probe
from agilerl.hpo.parameter_noise import noise
from agilerl.hpo.scales import from_scale, to_scale
from agilerl.hpo.screening import is_stuck, promising
from agilerl.language.base import load_base
from agilerl.language.collect.collector import LanguageCollector
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import SFTGym
from agilerl.modules.layers import NoisyLinear
from agilerl.networks.observations import bounds_to_unit
from agilerl.networks.q_networks import QNetwork, RainbowQNetwork
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

OBS, BOX, CHOICE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-2, 2, (2,)), gym.spaces.Discrete(4)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


@pytest.mark.parametrize("distributional", [False, True])
def test_dueling_values_are_the_states_value_in_the_mean_over_actions(distributional: bool) -> None:
    """Wang et al. 2016 (arXiv:1511.06581), equation 9."""
    net = RainbowQNetwork(OBS, CHOICE, num_atoms=5, distributional=distributional, **NET)
    obs = torch.randn(6, 3)
    combined = net.combine({"encoder": net.encoder, "head_net": net.head_net, "value_net": net.value_net}, obs)
    value = net.value_net(net.encoder(obs))
    mean = combined.mean(-2) if distributional else combined.mean(-1, keepdim=True)  # of values [B, A, K] or [B, A]
    torch.testing.assert_close(mean, value)


def test_bounds_that_are_not_symmetric_are_mapped_by_their_middle() -> None:
    centre, factor = bounds_to_unit(gym.spaces.Box(np.float32([2, -4]), np.float32([6, -2])))  # type: ignore[misc]
    assert centre.tolist() == [4, -3]
    assert factor.tolist() == [0.5, 1]


def test_noise_begins_at_half_over_the_root_of_the_inputs() -> None:
    """Fortunato et al. 2018 (arXiv:1706.10295), section 3.2: sigma_0 / sqrt(p)."""
    layer = NoisyLinear(16, 3)
    assert set(layer.weight_sigma.flatten().tolist()) == set(layer.bias_sigma.tolist()) == {0.125}


def test_a_rollout_buffer_counts_the_transitions_of_all_environments() -> None:
    memory = RolloutBuffer(capacity=4, num_envs=3, observation_space=OBS, action_space=CHOICE)
    for step in range(2):
        rows = np.zeros((3, 3), np.float32)
        memory.add(rows, np.zeros(3, int), np.zeros(3), np.zeros(3, bool), np.zeros(3), np.zeros(3), rows)
        assert memory.size() == 3 * (step + 1)


def test_greedy_actions_while_exploring_are_legal() -> None:
    agent = DQN(OBS, CHOICE, net_config=NET)
    values, mask = torch.tensor([[4.0, 3.0, 2.0, 1.0]]), np.array([[0, 1, 1, 1]])
    assert agent.explore(values, (np.ones(1), np.zeros(1)), 0.5, mask).tolist() == [1]
    assert agent.explore(values, (np.ones(1), np.zeros(1)), 0.5, None).tolist() == [0]


def test_exploration_of_cloned_policies_is_as_wide_as_asked() -> None:
    draws = [BC(OBS, BOX, net_config=NET, expl_noise=width).draw_exploration(np.random.default_rng(3), (500,))[0]
             for width in (0.0, 0.1, 0.2)]  # fmt: skip
    assert not draws[0].any()
    np.testing.assert_allclose(draws[2], 2 * draws[1])
    assert draws[1].std() == pytest.approx(0.1, rel=0.1)


def test_target_entropies_left_out_are_a_share_of_the_most_and_less_than_none() -> None:
    """Christodoulou 2019 (arXiv:1910.07207): 0.98 log |A|; Haarnoja et al. 2018 (arXiv:1812.05905): -dim(A)."""
    assert SAC(OBS, CHOICE, net_config=NET).target_entropy == pytest.approx(0.98 * math.log(4))
    assert SAC(OBS, BOX, net_config=NET).target_entropy == -2


def test_priorities_of_two_critics_are_the_larger_error() -> None:
    agent = TD3(OBS, gym.spaces.Box(-1, 1, (2,)), net_config=NET, gamma=0.0, seed=1)
    rng = np.random.default_rng(0)
    rows: dict[str, Any] = {
        "obs": rng.normal(size=(5, 3)).astype(np.float32), "action": rng.uniform(-1, 1, (5, 2)).astype(np.float32),
        "reward": np.array([3.0, -3.0, 0.5, -0.5, 0.0], np.float32), "next_obs": np.zeros((5, 3), np.float32),
        "done": np.zeros(5, np.float32), "weights": np.ones(5, np.float32), "idxs": np.arange(5),
    }  # fmt: skip
    with torch.no_grad():
        seen, done = torch.from_numpy(rows["obs"]), torch.from_numpy(rows["action"])
        errors = torch.stack([
            (critic(seen, done).squeeze(-1) - torch.from_numpy(rows["reward"])).abs()
            for critic in (agent.critic_1, agent.critic_2)
        ])  # fmt: skip
    found = agent.learn(rows, per=True)
    torch.testing.assert_close(torch.as_tensor(found[-1]).float().flatten(), errors.amax(0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(errors.amax(0), errors.amin(0), rtol=1e-3)


def test_the_loss_of_examples_is_the_mean_over_optimiser_steps(tmp_path: Path) -> None:
    tiny_base(tmp_path, tiny_tokenizer("12+="))
    base = load_base(tmp_path)
    rows = [{"prompt": f"{1 + k % 2}+1=", "completion": "2"} for k in range(5)]
    env = SFTGym(rows[:4], rows[4:], base.tokenizer, data_batch_size_per_gpu=4)
    losses = [SFT(actor_network=base, batch_size=size, lr=1e-12, seed=1).learn(env.batch(0)) for size in (4, 2)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4), "as many tokens in each half"


def test_random_actions_are_the_legal_ones_in_turn() -> None:
    mask = np.array([[0, 1, 0, 1]]).repeat(4, 0)
    assert uniform_actions(np.array([0.0, 0.49, 0.5, 0.99]), 4, mask).tolist() == [1, 1, 3, 3]


def test_noise_of_parameters_is_relative_to_each_weight() -> None:
    weights = {"w": torch.linspace(-1, 1, 200).view(10, 20)}
    small, large = (noise({"w": size * weights["w"]}, 0.1, np.random.default_rng(5))["w"] for size in (1, 100))
    torch.testing.assert_close(large, 100 * small)


@pytest.mark.parametrize(("name", "value"), [("gamma", 0.97), ("gae_lambda", 0.8), ("lr", 3e-4), ("batch_size", 64.0)])
def test_scales_of_hyperparameters_have_an_inverse(name: str, value: float) -> None:
    assert from_scale(name, to_scale(name, value)) == pytest.approx(value)


def test_memory_ends_with_the_episode() -> None:
    states = HiddenStates(SimpleNamespace(groups=[SimpleNamespace(lead=None)]))  # type: ignore[arg-type]
    states.hidden[0] = {"h": torch.ones(2, 1, 3, 4)}
    states.forget(0, np.array([[True, False, False], [False, False, True]]))
    assert states.hidden[0]["h"][..., 0].squeeze(1).tolist() == [[0, 1, 1], [1, 1, 0]]


def test_an_observation_beside_a_mask_is_read_by_itself() -> None:
    obs, mask = np.zeros(3), np.ones(2)
    seen, legal = split_mask({"observation": obs, "action_mask": mask})
    assert seen is obs
    assert legal is mask


def test_steps_of_an_architecture_are_halved_down_to_four_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """No change is small enough; a step of 16 units is tried with 8 and 4, and not with 2."""
    net = QNetwork(OBS, CHOICE, encoder_config={"hidden_size": [64]}, head_config={"hidden_size": [64]}, latent_dim=64)
    tried: list[int] = []

    def attempt(network: Any, name: str, options: Any, probe: Any, arguments: dict[str, Any]) -> Any:
        tried.append(arguments.get("numb_new_nodes", 16))
        copy = network.clone()
        copy.last_mutation_attr = name
        return copy, {"hidden_layer": 0, "numb_new_nodes": tried[-1]}

    monkeypatch.setattr(architecture, "attempt", attempt)
    monkeypatch.setattr(effects, "relative_change", lambda *_: 1.0)
    probes, group = (
        {"actor": Probe(torch.randn(4, 3), torch.randn(4, 3))},
        SimpleNamespace(eval_network="actor", policy=True),
    )
    agent, options = (
        SimpleNamespace(actor=net, registry=SimpleNamespace(groups=[group])),
        ArchitectureOptions(0.2, 0.02),
    )
    assert architecture.bounded(agent, group, "encoder.remove_node", options, probes) is None
    assert tried == [16, 8, 4]


def test_learning_begins_with_the_first_step_beyond_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, inner = [], Group.learn_each
    monkeypatch.setattr(Group, "learn_each", lambda self, *given: calls.append(given) or inner(self, *given))
    env = make_vect_envs("CartPole-v1", 2)
    agent = DQN(env.single_observation_space, env.single_action_space, net_config=NET, batch_size=4, learn_step=1)
    train_off_policy(env, "CartPole-v1", pop=[agent], memory=ReplayBuffer(100), max_steps=20, evo_steps=20,
                     eval_steps=5, learning_delay=16, learner="fused", verbose=False, seed=1)  # fmt: skip
    updates = sum(batches.count for batches, _ in calls)
    assert updates == 2 * 2, "two vector steps are beyond 16 transitions, each of two steps"


def test_a_run_that_never_gains_is_stuck_after_twice_the_patience() -> None:
    assert not is_stuck([[5.0]] * 5, patience=3)
    assert is_stuck([[5.0]] * 6, patience=3)
    assert not is_stuck([*[[5.0]] * 5, [6.0]], patience=3)


def test_members_without_an_episode_are_evaluated_first() -> None:
    members = [SimpleNamespace(scores=scores) for scores in ([5.0], [], [9.0])]
    assert promising(members, 2) == members[1:]
    assert promising(members, 1) == [members[1]]


def test_a_generation_of_prompts_ends_with_a_whole_batch() -> None:
    source: Any = SimpleNamespace(batch_size=4)
    assert [LanguageCollector.steps_of_generation(source, steps) for steps in (4, 6, 8)] == [4, 8, 8]
