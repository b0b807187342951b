"""What scripts for the published library import and call: every name and keyword, with the value that it has here."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from torch import nn, optim

import agilerl.utils.probe_envs as probes
from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.algorithms.core import MutationRegistry, NetworkGroup, OptimizerWrapper, RLAlgorithm
from agilerl.components import PrioritizedReplayBuffer, ReplayBuffer, RolloutBuffer, Transition
from agilerl.errors import (
    AgileRLError,
    AgileRLWarning,
    AlgorithmError,
    ConfigError,
    EnvError,
    NotAvailableYetError,
    ShapeError,
)
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules import EvolvableMLP, EvolvableMultiInput, EvolvableWrapper, ModuleDict
from agilerl.modules.base import EvolvableModule
from agilerl.modules.configs import CnnNetConfig, MlpNetConfig, NetConfig
from agilerl.modules.dummy import DummyEvolvable
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import QNetwork
from agilerl.rollouts import collect_rollouts, collect_rollouts_recurrent
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.typing import BPTTSequenceType
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.agent import RSNorm
from agilerl.wrappers.make_evolvable import MakeEvolvable

VECTOR, CHOICE = spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2)
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
OBS = np.random.default_rng(0).uniform(-1, 1, (6, 4)).astype(np.float32)


# --- import paths ---------------------------------------------------------------------------------------------------

PATHS = {
    "agilerl.typing": "BPTTSequenceType NetConfigType ObservationType TorchObsType NumpyObsType ArrayOrTensor",
    "agilerl.networks.q_networks": "QNetwork ContinuousQNetwork RainbowQNetwork",
    "agilerl.components": "ReplayBuffer PrioritizedReplayBuffer MultiStepReplayBuffer RolloutBuffer Transition",
    "agilerl.components.data": "Transition ReplayDataset to_tensordict to_torch_tensor",
    "agilerl.components.rollout_buffer": "RolloutBuffer",
    "agilerl.rollouts": "collect_rollouts collect_rollouts_recurrent",
    "agilerl.modules.custom_components": "NoisyLinear GumbelSoftmax",
    "agilerl.modules.configs": "NetConfig MlpNetConfig CnnNetConfig",
    "agilerl.utils.evolvable_networks": "is_image_space get_activation create_mlp create_simba",
    "agilerl.utils.algo_utils": "get_input_size_from_space get_output_size_from_space obs_channels_to_first",
    "agilerl.utils.utils": "print_hyperparams plot_population_score create_population make_vect_envs",
    "agilerl.utils.probe_envs": "check_q_learning_with_probe_env check_policy_q_learning_with_probe_env "
    "check_policy_on_policy_with_probe_env",
}


@pytest.mark.parametrize(("module", "name"), [(m, n) for m, names in PATHS.items() for n in names.split()])
def test_a_published_name_is_where_it_was_published(module: str, name: str) -> None:
    assert getattr(importlib.import_module(module), name) is not None


def test_the_packages_of_aliases_load_nothing_and_name_what_they_lack() -> None:
    code = (
        "import agilerl.components, agilerl.rollouts, sys\n"
        "print([m for m in ('torch', 'gymnasium', 'tensordict') if m in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    for name in ("agilerl.components", "agilerl.rollouts"):
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = importlib.import_module(name).nothing


# --- experience -----------------------------------------------------------------------------------------------------


def test_a_transition_is_positional_and_goes_to_its_device() -> None:
    row = Transition(OBS[0], 1, 2.5, OBS[1], True, batch_size=[], device="cpu")
    assert (row.action.tolist(), row.reward.tolist(), row.done.tolist()) == ([1], [2.5], [True])
    assert row.device == torch.device("cpu")
    assert Transition(OBS, OBS, OBS, OBS, OBS, device="meta").next_obs.device.type == "meta"
    memory = ReplayBuffer(max_size=10, device="cpu")
    many = Transition(obs=OBS, action=np.arange(6) % 2, reward=np.ones(6), next_obs=OBS, done=np.zeros(6), device="cpu")
    many.batch_size = [6]
    memory.add(many.to_tensordict())
    assert len(memory) == 6


def test_prioritised_samples_have_columns_of_indices_and_weights() -> None:
    memory = PrioritizedReplayBuffer(max_size=16, alpha=0.6)
    memory.add({"obs": OBS, "action": np.arange(6) % 2, "reward": np.ones(6), "next_obs": OBS, "done": np.zeros(6)})
    batch = memory.sample(5, 0.4)
    assert batch["idxs"].shape == batch["weights"].shape == (5, 1)
    agent = RainbowDQN(VECTOR, CHOICE, net_config=NET, batch_size=5)
    _, idxs, priorities = agent.learn(batch, per=True)
    memory.update_priorities(idxs, priorities)
    assert memory.max_priority >= 1.0


def test_a_rollout_buffer_computes_returns_by_hand() -> None:
    """Two episodes of two steps, no values, γ = λ = 1: what is still to come, and nothing over an end."""
    buffer = RolloutBuffer(4, VECTOR, CHOICE, 1, "cpu", 1.0, 1.0)
    for t, (reward, done) in enumerate(zip([0, 10, 0, 5], [0, 1, 0, 1], strict=True)):
        buffer.add(OBS[t], np.array([t % 2]), reward, done, np.zeros(1), np.array([-0.7]))
    assert (buffer.pos, buffer.full, buffer.size(), buffer.capacity) == (4, True, 4, 4)
    with pytest.raises(ValueError, match="Buffer has reached capacity"):
        buffer.add(OBS[0], 0, 0.0, False, 0.0, 0.0)
    buffer.compute_returns_and_advantages(np.array([100.0]), np.array([1.0]))
    rows = buffer.get()
    assert rows["advantages"].tolist() == rows["returns"].tolist() == [10, 10, 5, 5]
    assert rows["dones"].tolist() == [False, True, False, True]
    np.testing.assert_array_equal(rows["observations"], OBS[:4])
    batch = buffer.get_tensor_batch(3)
    assert batch.batch_size == torch.Size([3])
    assert len({tuple(row) for row in batch["observations"].tolist()}) == 3
    with pytest.warns(AgileRLWarning, match="larger than buffer size"):
        assert len(buffer.get(5)["rewards"]) == 4
    copy = pickle.loads(pickle.dumps(buffer))
    np.testing.assert_array_equal(copy.get()["returns"], rows["returns"])
    buffer.reset()
    assert (buffer.pos, buffer.size(), buffer.get()) == (0, 0, {})


def test_advantages_are_those_of_the_recursion_and_an_episode_start_ends_what_was_before() -> None:
    """δ₁ = 2 + 0.5·4 − 1 = 3; δ₀ = 1 + 0.5·1 − 2 = −0.5; Â₀ = −0.5 + 0.25·3 = 0.25. In the other lane an episode
    begins with the second step: Â₀ = 1 − 2 = −1."""
    buffer = RolloutBuffer(2, VECTOR, CHOICE, num_envs=2, gae_lambda=0.5, gamma=0.5)
    buffer.add(OBS[:2], [0, 1], [1, 1], [False, False], [2, 2], [0, 0], episode_start=[True, True])
    buffer.add(OBS[:2], [0, 1], [2, 2], [False, False], [1, 1], [0, 0], episode_start=[False, True])
    buffer.compute_returns_and_advantages(torch.tensor([4.0, 4.0]), torch.tensor([0.0, 0.0]))
    np.testing.assert_allclose(buffer.advantages, [[0.25, -1.0], [3.0, 3.0]])
    np.testing.assert_allclose(buffer.returns, [[2.25, 1.0], [4.0, 4.0]])


def test_monte_carlo_returns_are_those_of_lambda_one() -> None:
    buffer = RolloutBuffer(2, VECTOR, CHOICE, gae_lambda=0.1, gamma=0.5, use_gae=False)
    for reward in (1.0, 2.0):
        buffer.add(OBS[0], 0, reward, False, 3.0, 0.0)
    buffer.compute_returns_and_advantages(8.0, False)
    np.testing.assert_allclose(buffer.returns[:, 0], [1 + 0.5 * 2 + 0.25 * 8, 2 + 0.5 * 8])


def test_a_buffer_that_wraps_keeps_the_newest_steps_in_the_order_of_time() -> None:
    buffer = RolloutBuffer(3, VECTOR, CHOICE, wrap_at_capacity=True)
    for reward in range(5):
        buffer.add(OBS[reward], 0, float(reward), False, 0.0, 0.0)
    assert buffer.get()["rewards"].tolist() == [2, 3, 4]
    assert (buffer.pos, buffer.full, buffer.size()) == (2, True, 3)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"capacity": 0}, "capacity must be an integer of at least 1"),
        ({"recurrent": True}, "hidden_state_architecture must be provided"),
    ],
)
def test_a_rollout_buffer_says_what_it_lacks(arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        RolloutBuffer(**{"capacity": 4, "observation_space": VECTOR, "action_space": CHOICE, **arguments})


def test_rows_that_lack_something_are_named() -> None:
    buffer = RolloutBuffer(4, VECTOR, CHOICE, num_envs=2)
    with pytest.raises(ShapeError, match="got no value, log_prob"):
        buffer.add(OBS[:2], [0, 1], [0, 0], [0, 0])
    with pytest.raises(ShapeError, match="reward got 3 numbers for 2 environments"):
        buffer.add(OBS[:2], [0, 1], [0, 0, 0], [0, 0], [0, 0], [0, 0])
    with pytest.raises(ShapeError, match="got 3 flags for 2 environments"):
        buffer.add(OBS[:2], [0, 1], [0, 0], [0, 0, 0], [0, 0], [0, 0])
    with pytest.raises(ShapeError, match=r"actions of shape \(3,\); expected \(2,\)"):
        buffer.add(OBS[:2], [0, 1, 1], [0, 0], [0, 0], [0, 0], [0, 0])
    with pytest.raises(ShapeError, match="nothing to compute"):
        buffer.compute_returns_and_advantages([0, 0], [0, 0])
    recurrent = RolloutBuffer(4, VECTOR, CHOICE, recurrent=True, hidden_state_architecture={"actor_encoder_h": (1, 8)})
    with pytest.raises(ShapeError, match="needs the hidden state from before the step"):
        recurrent.add(OBS[0], 0, 0.0, False, 0.0, 0.0)


# --- PPO ------------------------------------------------------------------------------------------------------------


def ppo(action_space: Any = CHOICE, **more: Any) -> PPO:
    return PPO(VECTOR, action_space, **{"net_config": NET, "batch_size": 4, "learn_step": 8, "seed": 1, **more})


def fill(agent: PPO, env: Any, hidden: Any = None) -> None:
    """The published loop around `rollout_buffer.add`."""
    obs, _ = env.reset(seed=3)
    buffer = agent.rollout_buffer
    for _ in range(buffer.capacity):
        action, log_prob, _, value, *after = agent.get_action(obs, **({"hidden_state": hidden} if hidden else {}))
        next_obs, reward, terminated, truncated, _ = env.step(action)
        done = np.logical_or(terminated, truncated)
        buffer.add(obs, action, reward, done, value, log_prob, next_obs=next_obs, hidden_state=hidden)
        obs, hidden = next_obs, after[0] if after else None
    last_value = agent.get_action(obs, **({"hidden_state": hidden} if hidden else {}))[3]
    buffer.compute_returns_and_advantages(last_value, done)


def test_a_hand_filled_buffer_teaches_what_the_tuple_teaches() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agent = ppo(num_envs=2, learn_step=16)
    fill(agent, env)
    twin, buffer = agent.clone(), agent.rollout_buffer
    assert (buffer.capacity, buffer.num_envs, buffer.full) == (8, 2, True)
    before = agent.actor.state_dict()["head_net.model.linear_output.weight"].clone()
    stored = {name: buffer.stored(name).copy() for name in ("obs", "action", "reward", "value", "log_prob")}
    ended, after = buffer.stored("terminated").copy(), buffer.last_obs.copy()
    loss = agent.learn()
    assert np.isfinite(loss)
    assert len(buffer) == 0
    assert not torch.equal(agent.actor.state_dict()["head_net.model.linear_output.weight"], before)
    dones = [np.zeros(2), *ended[:-1]]
    names = ("obs", "action", "log_prob", "reward")
    lists = [list(stored[name]) for name in names]
    by_tuple = twin.learn((*lists, dones, list(stored["value"]), after, ended[-1]))
    assert loss == pytest.approx(by_tuple, rel=1e-6)
    for one, other in zip(agent.actor.parameters(), twin.actor.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    env.close()


def test_a_buffer_that_is_filled_by_hand_holds_what_a_wrapped_agent_saw() -> None:
    """In a second rollout too, where the statistics have moved: its log probabilities are those of what it holds."""
    env = make_vect_envs("CartPole-v1", num_envs=2)
    wrapped = RSNorm(ppo(num_envs=2, learn_step=16))
    for _ in range(2):
        fill(wrapped, env)  # type: ignore[arg-type]
        rows = wrapped.rollout_buffer.get()
        log_prob, _, _ = wrapped.agent.evaluate_actions(rows["observations"], rows["actions"])
        np.testing.assert_allclose(log_prob.detach().numpy(), rows["log_probs"], rtol=1e-4, atol=1e-5)
        before = wrapped.obs_rms.count
        assert np.isfinite(wrapped.learn())
        assert wrapped.obs_rms.count > before
    env.close()


def test_an_agent_learns_from_a_buffer_that_it_is_given_by_that_buffers_kind_of_returns() -> None:
    """Without GAE it learns as an agent with λ = 1 does."""
    env = make_vect_envs("CartPole-v1", num_envs=2)
    one, other = (ppo(num_envs=2, learn_step=16, gae_lambda=lam) for lam in (0.5, 1.0))
    one.rollout_buffer = RolloutBuffer(8, VECTOR, CHOICE, num_envs=2, use_gae=False)
    losses = []
    for agent in (one, other):
        fill(agent, env)
        losses.append(agent.learn())
    assert losses[0] == losses[1]
    assert one.gae_lambda == 0.5
    env.close()


def test_learning_needs_to_know_what_followed() -> None:
    agent = ppo(learn_step=2)
    for _ in range(2):
        agent.rollout_buffer.add(OBS[0], 0, 1.0, False, 0.0, -0.7)
    with pytest.raises(AgileRLError, match="does not know what followed the last step"):
        agent.learn()


@pytest.mark.parametrize("share", [False, True])
def test_hidden_states_have_their_published_keys_and_a_recurrent_buffer_is_filled_by_hand(share: bool) -> None:
    net = {"encoder_config": {"hidden_state_size": 16, "num_layers": 1}, "head_config": {"hidden_size": [16]}}
    agent = ppo(
        recurrent=True, use_rollout_buffer=True, share_encoders=share, num_envs=2, learn_step=16, net_config=net,
        bptt_sequence_type=BPTTSequenceType.CHUNKED, max_seq_len=4,
    )  # fmt: skip
    owners = ["shared"] if share else ["actor", "critic"]
    assert set(agent.get_initial_hidden_state(2)) == {f"{owner}_encoder_{part}" for owner in owners for part in "hc"}
    assert agent.get_initial_hidden_state(2)[f"{owners[0]}_encoder_h"].shape == (1, 2, 16)
    env = make_vect_envs("CartPole-v1", num_envs=2)
    fill(agent, env, agent.get_initial_hidden_state(2))
    assert set(agent.rollout_buffer.get()["hidden_states"]) == set(agent.get_initial_hidden_state(1))
    assert np.isfinite(agent.learn())
    scores, obs, done, running, info = collect_rollouts_recurrent(agent, env)
    assert (obs.shape, done.shape, running.shape, isinstance(scores, list), isinstance(info, dict)) == (
        (2, 4), (2,), (2,), True, True,
    )  # fmt: skip
    assert np.isfinite(agent.learn())
    env.close()


def test_sequence_types_are_those_that_the_engine_cuts_by() -> None:
    from agilerl.engine.rollouts import KINDS

    assert tuple(BPTTSequenceType) == KINDS
    for kind in BPTTSequenceType:
        assert ppo(bptt_sequence_type=kind).bptt_sequence_type == kind


@pytest.mark.parametrize(
    "space",
    [CHOICE, spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(3), BOX, spaces.Box(-2, 3, (2, 3), np.float32)],
    ids=["Discrete", "MultiDiscrete", "MultiBinary", "Box", "Box of rank 2"],
)
@pytest.mark.parametrize("share", [False, True])
def test_actions_evaluate_to_what_they_were_taken_with(space: Any, share: bool) -> None:
    agent = ppo(space, share_encoders=share)
    action, log_prob, entropy, value = agent.get_action(OBS)
    found = agent.evaluate_actions(obs=OBS, actions=action)
    for one, other in zip(found, (log_prob, entropy, value), strict=True):
        np.testing.assert_allclose(one.detach().numpy(), other, rtol=1e-5, atol=1e-6)
    (found[0].sum() + found[2].sum()).backward()
    assert all(p.grad is not None for n in agent.networks for p in getattr(agent, n).parameters())


def test_evaluated_actions_follow_masks_and_hidden_states() -> None:
    agent = ppo(spaces.Discrete(3))
    masked = agent.evaluate_actions(OBS, np.ones(6, int), action_mask=[0, 1, 0])
    np.testing.assert_allclose(masked[0].detach().numpy(), np.zeros(6), atol=1e-6)
    np.testing.assert_allclose(masked[1].detach().numpy(), np.zeros(6), atol=1e-6)
    with pytest.raises(ShapeError, match="actions of shape"):
        agent.evaluate_actions(OBS, np.ones(5, int))
    net = {"encoder_config": {"hidden_state_size": 16}, "head_config": {"hidden_size": [16]}}
    recurrent = ppo(recurrent=True, net_config=net)
    _, _, _, _, hidden = recurrent.get_action(OBS)
    action, log_prob, _, value, _ = recurrent.get_action(OBS, hidden_state=hidden)
    found = recurrent.evaluate_actions(OBS, action, hidden_state=hidden)
    np.testing.assert_allclose(found[0].detach().numpy(), log_prob, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found[2].detach().numpy(), value, rtol=1e-4, atol=1e-5)
    fresh = recurrent.evaluate_actions(OBS, action)
    assert not np.allclose(fresh[2].detach().numpy(), value, atol=1e-4)


def test_squashed_actions_evaluate_too() -> None:
    agent = ppo(BOX, net_config={**NET, "squash_output": True})
    action, log_prob, entropy, _ = agent.get_action(OBS)
    found = agent.evaluate_actions(OBS, action)
    np.testing.assert_allclose(found[0].detach().numpy(), log_prob, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found[1].detach().numpy(), entropy, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("wrapped", [False, True], ids=["next_obs", "[next_obs]"])
def test_experiences_of_one_stacked_tensor_each_teach_as_lists_of_steps(wrapped: bool) -> None:
    """46 rows in batches of 45, of one environment over time, and of 46 environments in one step."""
    rng = np.random.default_rng(5)
    rows = [rng.normal(size=(46, 4)), rng.integers(2, size=46), *rng.normal(size=(2, 46)), np.zeros(46)]
    rows = [torch.as_tensor(np.asarray(x), dtype=torch.float32) for x in (*rows, rng.normal(size=46))]
    for lanes in (1, 46):
        after = [torch.ones(lanes, 4), torch.zeros(lanes)]
        one, other = ppo(batch_size=45), ppo(batch_size=45)
        loss = one.learn((*([x] for x in rows), *([[x] for x in after] if wrapped else after)))
        lists = [[x[t : t + 1] for t in range(46)] if lanes == 1 else [x] for x in rows]
        assert loss == other.learn((*lists, *after))


# --- agents ---------------------------------------------------------------------------------------------------------


def agents() -> list[Any]:
    one = [cls(VECTOR, CHOICE, net_config=NET) for cls in (DQN, RainbowDQN)]
    return [*one, *(cls(VECTOR, BOX, net_config=NET) for cls in (DDPG, TD3, SAC, PPO))]


@pytest.mark.parametrize("agent", agents(), ids=lambda agent: agent.algo)
def test_agents_are_tested_with_a_callback_and_know_their_bounds(agent: Any) -> None:
    box = isinstance(agent.action_space, spaces.Box)
    env = gym.vector.SyncVectorEnv([lambda: Countdown(agent.action_space)] * 3)
    seen: list[tuple[float, dict[str, Any]]] = []
    fitness = agent.test(env, vectorized=True, max_steps=20, loop=2, callback=lambda *told: seen.append(told))
    assert fitness == 5.0
    assert [score for score, _ in seen] == [5.0] * 6
    assert all(isinstance(info, dict) for _, info in seen)
    assert agent.test(Countdown(agent.action_space), vectorized=False, max_steps=3) == 3.0
    with pytest.raises(EnvError, match="vector of 3 environments"):
        agent.test(env, vectorized=False)
    np.testing.assert_array_equal(agent.action_low, BOX.low if box else None)
    np.testing.assert_array_equal(agent.action_high, BOX.high if box else None)
    tensor = agent.preprocess_observation(OBS[0])
    assert (tensor.shape, tensor.dtype) == ((1, 4), torch.float32)
    rows, whole = agent.preprocess_observation(OBS), agent.policy_output(OBS)
    torch.testing.assert_close(agent.policy_output(rows), whole)


class Countdown(gym.Env[Any, Any]):
    """Reward 1 in each of five steps."""

    observation_space = VECTOR

    def __init__(self, action_space: Any) -> None:
        self.action_space, self.left = action_space, 5

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.left = 5
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(np.asarray(action, self.action_space.dtype).reshape(self.action_space.shape))
        self.left -= 1
        return np.zeros(4, np.float32), 1.0, self.left == 0, False, {}


def test_a_subclass_may_have_bounds_of_its_own() -> None:
    class Own(DDPG):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.action_low = np.zeros(2)

    assert Own(VECTOR, BOX, net_config=NET).clone().action_low.tolist() == [0, 0]


def test_noise_needs_no_argument_and_actions_are_rescaled_by_their_activation() -> None:
    agent = TD3(VECTOR, BOX, net_config=NET, O_U_noise=False, expl_noise=0.5, vect_noise_dim=500, seed=0)
    noise = agent.action_noise()
    assert noise.shape == (500, 2)
    assert noise.std() == pytest.approx(0.5, abs=0.03)
    scaled = DeterministicActor.rescale_action(
        torch.tensor([0.5, 0.25]), low=torch.tensor(BOX.low), high=torch.tensor(BOX.high), output_activation="Sigmoid"
    )
    assert scaled.tolist() == [0.0, 0.25]


@pytest.mark.parametrize("cls", [DDPG, TD3, SAC, PPO])
def test_evaluation_loops_act_in_units_of_the_environment(cls: Any) -> None:
    space = spaces.Box(-0.1, 0.1, (2,), np.float32)
    agent = cls(VECTOR, space, net_config=NET, seed=0)
    with torch.no_grad():
        for parameter in agent.actor.head_net.model.linear_output.parameters():
            parameter.mul_(100)
    agent.set_training_mode(False)
    action = agent.get_action(OBS)[0] if cls is PPO else agent.get_action(OBS)
    assert 0.05 < np.abs(action).max() <= 0.1 + 1e-7


@pytest.mark.parametrize("cls", [DDPG, TD3, SAC, PPO])
def test_box_actions_of_two_axes_train(cls: Any) -> None:
    space = spaces.Box(-2, 3, (2, 3), np.float32)
    env = make_vect_envs(make_env=lambda: Countdown(space), num_envs=2)
    more = {"INIT_HP": {"LEARN_STEP": 16, "BATCH_SIZE": 8}}
    pop = create_population(
        cls.__name__, NET, observation_space=VECTOR, action_space=space, num_envs=2, population_size=1, **more
    )
    if cls is PPO:
        _, fitnesses = train_on_policy(env, "countdown", pop=pop, max_steps=64, evo_steps=64, verbose=False)
    else:
        memory = ReplayBuffer(max_size=100)
        _, fitnesses = train_off_policy(
            env, "countdown", cls.__name__, pop, memory, max_steps=64, evo_steps=64, verbose=False
        )
    assert fitnesses == [[5.0]]
    assert pop[0].get_action(OBS, training=False)[0].shape in ((6, 2, 3), (2, 3))
    env.close()


@pytest.mark.parametrize("key", ["clip_actions", "normalize_actions"])
@pytest.mark.parametrize("cls", [DDPG, TD3, SAC])
def test_keys_that_say_what_is_so_anyway_are_taken_and_their_opposite_is_named(cls: Any, key: str) -> None:
    plain, keyed = (cls(VECTOR, BOX, net_config=config, seed=1) for config in (NET, {**NET, key: True}))
    np.testing.assert_array_equal(plain.get_action(OBS, False), keyed.get_action(OBS, False))
    with pytest.raises(ConfigError, match=f"{key}=False is not supported.*fix: leave it out"):
        cls(VECTOR, BOX, net_config={**NET, key: False})


def test_keys_of_memory_say_what_they_need() -> None:
    memory = {"encoder_config": {"hidden_state_size": 16, "use_hidden_state": True}}
    assert ppo(net_config=memory, recurrent=True).hidden_state_architecture["actor_encoder_h"] == (1, 16)
    with pytest.raises(ConfigError, match=r"use_hidden_state contradicts DQN.*PPO\(recurrent=True\)"):
        DQN(VECTOR, CHOICE, net_config=memory)
    with pytest.raises(ConfigError, match=r"DQN: net_config asks for a recurrent encoder.*PPO\(recurrent=True\)"):
        DQN(VECTOR, CHOICE, net_config={"encoder_config": {"hidden_state_size": 16}})


# --- networks -------------------------------------------------------------------------------------------------------


def test_mutation_methods_are_found_by_their_dotted_names() -> None:
    network = QNetwork(VECTOR, CHOICE, **NET)
    wrapped = EvolvableWrapper(EvolvableMLP(4, 2, [16]))
    several = ModuleDict()
    several["one"] = EvolvableMLP(4, 2, [16], min_mlp_nodes=8)
    for module in (network, wrapped, several):
        for name in module.mutation_methods:
            twin = module.clone()
            before = {key: tuple(value.shape) for key, value in twin.state_dict().items()}
            getattr(twin, name)()
            changed = before != {key: tuple(value.shape) for key, value in twin.state_dict().items()}
            assert changed == (twin.last_mutation_attr is not None), name
    getattr(network, "head_net.add_layer")()
    assert (network.last_mutation_attr, network.head_net.hidden_size) == ("head_net.add_layer", [16, 16])
    chosen = several.sample_mutation_method(0.5, np.random.default_rng(0))
    getattr(several, str(chosen))()
    assert several.last_mutation_attr == chosen
    with pytest.raises(AttributeError, match=r"'QNetwork' object has no attribute 'head_net.add_wings'"):
        getattr(network, "head_net.add_wings")
    assert not hasattr(network, "nothing")


class OwnNetwork(EvolvableNetwork):
    """Twice the value of a head, written the documented way."""

    def __init__(
        self, observation_space: Any, action_space: Any, encoder_config: Any = None, head_config: Any = None,
        latent_dim: int = 16, device: str = "cpu", random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            observation_space, action_space=action_space, encoder_config=encoder_config, latent_dim=latent_dim,
            device=device, random_seed=random_seed,
        )  # fmt: skip
        self.num_actions = int(spaces.flatdim(action_space))
        self.build_network_head(head_config)

    def build_network_head(self, net_config: Any = None) -> None:
        self.head_net = self.create_mlp(
            num_inputs=self.latent_dim, num_outputs=self.num_actions, name="value", net_config=net_config
        )

    def forward(self, obs: Any) -> Any:  # type: ignore[override]
        return 2 * self.forward_head(self.extract_features(obs))

    def recreate_network(self, **kwargs: Any) -> None:
        self.recreate_encoder()
        head = self.create_mlp(
            num_inputs=self.latent_dim, num_outputs=self.num_actions, name="value", net_config=self.head_net.net_config
        )
        self.head_net = EvolvableModule.preserve_parameters(self.head_net, head)


def test_a_network_of_ones_own_acts_evolves_and_is_saved(tmp_path: Path) -> None:
    network = OwnNetwork(VECTOR, CHOICE, {"hidden_size": [16]}, MlpNetConfig(hidden_size=[16]), random_seed=3)
    agent = DQN(VECTOR, CHOICE, actor_network=network, batch_size=6, seed=1)
    with torch.no_grad():
        torch.testing.assert_close(agent.policy_output(OBS), 2 * network.head_net(network.encoder(torch.tensor(OBS))))
    wider = network.clone()
    assert wider.add_latent_node(numb_new_nodes=8) == {"numb_new_nodes": 8}
    assert (wider.latent_dim, wider.head_net.num_inputs, wider.encoder.num_outputs) == (24, 24, 24)
    first = "linear_0.weight"
    torch.testing.assert_close(wider.head_net.model.get_parameter(first)[:, :16],
                               network.head_net.model.get_parameter(first))  # fmt: skip
    getattr(wider, "remove_latent_node")(numb_new_nodes=8)  # noqa: B009 (as scripts call it)
    torch.testing.assert_close(wider(OBS), network(OBS))
    mutations = Mutations(0, 1, 0.3, 0, 0, 0, rand_seed=2)
    rows = {"obs": OBS, "action": np.zeros(6, int), "reward": np.ones(6), "next_obs": OBS, "done": np.ones(6)}
    said = set()
    for _ in range(6):
        mutations.mutation([agent])
        said.add(agent.mut)
        agent.learn(rows)
    assert len(said - {"None"}) >= 2
    agent.save_checkpoint(tmp_path / "own.pt")
    other = DQN(VECTOR, CHOICE, actor_network=OwnNetwork(VECTOR, CHOICE))
    other.load_checkpoint(tmp_path / "own.pt")
    torch.testing.assert_close(other.actor(OBS), agent.actor(OBS), rtol=0, atol=0)


def test_features_take_a_hidden_state_and_heads_are_rebuilt() -> None:
    network = QNetwork(VECTOR, CHOICE, recurrent=True, latent_dim=16, encoder_config={"hidden_state_size": 16})
    features, state = network.extract_features(OBS, hidden_state=network.initialize_hidden_state(6))
    assert features.shape == (6, 16)
    assert set(state) == {"encoder_h", "encoder_c"}
    torch.testing.assert_close(features, network.extract_features(OBS))
    network.build_network_head({"hidden_size": [8, 8]})
    assert (network.head_net.hidden_size, network(OBS).shape) == ([8, 8], (6, 2))


def test_preserved_parameters_are_leading_blocks() -> None:
    small, large = EvolvableMLP(2, 1, [3], min_mlp_nodes=1), EvolvableMLP(2, 1, [5], min_mlp_nodes=1)
    before = large.model.get_parameter("linear_0.weight").clone()
    assert EvolvableModule.preserve_parameters(small, large) is large
    weight = large.model.get_parameter("linear_0.weight")
    assert torch.equal(weight[:3], small.model.get_parameter("linear_0.weight"))
    assert torch.equal(weight[3:], before[3:])


def test_an_encoder_is_named_or_given() -> None:
    named = QNetwork(VECTOR, CHOICE, encoder_cls="EvolvableSimBa")  # type: ignore[arg-type]
    assert type(named.encoder).__name__ == "EvolvableSimBa"
    assert type(QNetwork.from_spec(named.spec()).encoder).__name__ == "EvolvableSimBa"
    with pytest.raises(ConfigError, match=r"unknown encoder_cls 'EvolvableMPL'. Did you mean 'EvolvableMLP'"):
        QNetwork(VECTOR, CHOICE, encoder_cls="EvolvableMPL")  # type: ignore[arg-type]


def test_configurations_are_read_like_mappings() -> None:
    config: NetConfig = MlpNetConfig(hidden_size=[16, 8], activation="Tanh")
    assert (config["hidden_size"], config["noisy"], config.get("noisy", True)) == ([16, 8], False, False)
    assert "activation" in config
    assert "noisy" not in config
    assert list(config) == list(config.keys()) == ["hidden_size", "activation"]
    assert dict(config.items()) == dict(config) == {"hidden_size": [16, 8], "activation": "Tanh"}
    assert EvolvableMLP(4, 2, **config).hidden_size == [16, 8]
    with pytest.raises(KeyError, match="hidden_size"):
        config["hidden_sizes"]
    image = spaces.Box(0, 255, (3, 16, 16), np.uint8)
    cnn = CnnNetConfig(channel_size=[4], kernel_size=[3], stride_size=[2])
    for given in (dataclasses.asdict(cnn), dict(cnn), cnn):
        assert QNetwork(image, CHOICE, encoder_config=given).encoder.channel_size == [4]


def test_memory_of_parts_is_none_or_named() -> None:
    space = spaces.Dict(a=VECTOR, b=CHOICE)
    network = EvolvableMultiInput(space, 3, lstm_config=None)
    assert "lstm_config" not in network.get_init_dict()
    with pytest.raises(NotAvailableYetError, match="fix: lstm_config=None"):
        EvolvableMultiInput(space, 3, lstm_config={"hidden_state_size": 8})  # type: ignore[arg-type]


def test_a_registry_is_made_without_arguments() -> None:
    assert (MutationRegistry().policy(), len(MutationRegistry().hp_config.names())) == (None, 0)


# --- modules of one's own -------------------------------------------------------------------------------------------


class Plain(nn.Module):
    """A torch network that knows nothing of evolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.comment = "mine"

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def test_a_wrapped_module_passes_its_attributes_on() -> None:
    wrapped = DummyEvolvable(module_fn=Plain)
    assert wrapped.comment == "mine"
    assert wrapped.layers is wrapped.module.layers
    assert wrapped.clone().comment == "mine"
    assert pickle.loads(pickle.dumps(wrapped)).comment == "mine"
    assert not hasattr(wrapped, "nothing")


@pytest.mark.parametrize("make", [lambda: MakeEvolvable(Plain(), torch.randn(1, 4)), lambda: DummyEvolvable(Plain())])
def test_own_torch_networks_train_and_outlive_architecture_mutations(make: Any) -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    pop = create_population(
        "DQN", INIT_HP={"BATCH_SIZE": 8}, observation_space=env.single_observation_space,
        action_space=env.single_action_space, actor_network=make(), population_size=2, num_envs=2,
    )  # fmt: skip
    first = pop[0].actor.layers[0].weight.clone()
    pop, fitnesses = train_off_policy(
        env, "CartPole-v1", "DQN", pop, ReplayBuffer(max_size=500), max_steps=120, evo_steps=40, eval_steps=20,
        tournament=TournamentSelection(2, True, 2, 1), mutation=Mutations(0, 1, 0.5, 0, 0, 0), verbose=False,
    )  # fmt: skip
    assert len(fitnesses) == 3
    assert [agent.mut for agent in pop] == ["None", "None"]
    assert not torch.equal(pop[0].actor.layers[0].weight, first)
    env.close()


def test_a_bare_module_is_pointed_to_the_wrapper() -> None:
    with pytest.raises(TypeError, match=r"must be an EvolvableModule; got Plain. fix: MakeEvolvable\(network\)"):
        DQN(VECTOR, CHOICE, actor_network=Plain())  # type: ignore[arg-type]


# --- algorithms of one's own ----------------------------------------------------------------------------------------


class Whole(RLAlgorithm):
    """An algorithm with required arguments, and a network of several inputs of its own."""

    def __init__(self, observation_space: Any, action_space: Any, index: int, width: int, lr: float = 1e-3) -> None:
        super().__init__(observation_space, action_space, index=index)
        self.lr, self.width = lr, width
        self.actor = EvolvableMultiInput(observation_space, width)
        self.optimizer = OptimizerWrapper(optim.Adam, self.actor, self.lr)
        self.register_network_group(NetworkGroup(eval_network=self.actor, policy=True))


def test_an_own_algorithm_loads_what_it_requires_and_its_network_of_several_inputs(tmp_path: Path) -> None:
    agent = Whole(spaces.Dict(a=VECTOR, b=CHOICE), CHOICE, 3, 17)
    agent.save_checkpoint(tmp_path / "own.pt")
    twin = Whole.load(tmp_path / "own.pt")
    assert (twin.index, twin.width) == (3, 17)
    for one, other in zip(agent.actor.parameters(), twin.actor.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_constructor_that_lacks_an_argument_is_blamed_and_not_the_file(tmp_path: Path) -> None:
    class Lacking(DQN):
        def __init__(self, observation_space: Any, action_space: Any, **more: Any) -> None:
            renamed = {"gpu" if name == "accelerator" else name: value for name, value in more.items()}
            super().__init__(observation_space, action_space, **renamed)

    Lacking(VECTOR, CHOICE).save_checkpoint(tmp_path / "own.pt")
    with pytest.raises(AlgorithmError, match=r"Lacking.*unexpected keyword argument 'gpu'.*fix: let its constructor"):
        Lacking.load(tmp_path / "own.pt")


def test_training_takes_a_class_and_registers_it() -> None:
    import agilerl
    from agilerl.algorithms import find_algorithm

    class OwnDQN(DQN):
        """As it is."""

    settings = {
        "training.evo_steps": 40, "training.eval_episodes": 1, "training.eval_steps": 10, "training.confirm_episodes": 0
    }  # fmt: skip
    for cls in (OwnDQN, DQN):
        run = agilerl.train("CartPole-v1", cls, population=1, steps=40, out=None, verbose=False, **settings)
        assert type(run.best) is cls
    assert find_algorithm("OwnDQN") is OwnDQN
    with pytest.raises(AlgorithmError, match="does not derive from RLAlgorithm"):
        agilerl.train("CartPole-v1", Plain, out=None)


def test_the_best_of_a_run_acts_greedily_in_units_of_the_environment(tmp_path: Path) -> None:
    """Also after `agilerl.load`; a policy in [-1, 1] and with noise would play Pendulum-v1 at half its torque."""
    import agilerl

    settings = {
        "training.evo_steps": 50, "training.eval_episodes": 1, "training.eval_steps": 10, "training.confirm_episodes": 0
    }  # fmt: skip
    run = agilerl.train("Pendulum-v1", "TD3", population=1, steps=50, out=tmp_path, verbose=False, **settings)
    seen = OBS[:, :3]
    for best in (run.best, agilerl.load(run.path).best):
        with torch.no_grad():
            torques = 2 * best.actor(seen).numpy()
        for _ in range(2):
            np.testing.assert_allclose(best.get_action(seen), torques, rtol=1e-5)


def test_a_memory_that_is_none_is_named_at_the_call() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=1)
    pop = create_population("DQN", NET, observation_space=VECTOR, action_space=CHOICE)
    with pytest.raises(AgileRLError, match="the memory is a list without"):
        train_off_policy(env, "CartPole-v1", "DQN", [pop[0]], [], max_steps=10)
    env.close()


# --- helpers --------------------------------------------------------------------------------------------------------


def test_sizes_of_spaces_are_those_that_networks_see() -> None:
    from agilerl.utils.algo_utils import get_input_size_from_space, get_output_size_from_space, obs_channels_to_first

    image = spaces.Box(0, 255, (8, 6, 3), np.uint8)
    several = spaces.Dict(a=VECTOR, b=spaces.Discrete(5))
    assert get_input_size_from_space(image) == (8, 6, 3)
    assert get_input_size_from_space(several) == {"a": (4,), "b": (5,)}
    assert get_input_size_from_space([VECTOR, spaces.MultiDiscrete([2, 3])]) == ((4,), (5,))
    assert get_output_size_from_space(spaces.Discrete(5)) == 5
    assert get_output_size_from_space({"a": BOX, "b": spaces.MultiBinary(3)}) == {"a": 2, "b": 3}
    turned = obs_channels_to_first({"i": image.sample(), "v": np.zeros(4)}, expand_dims=True)
    assert (turned["i"].shape, turned["v"].shape) == ((1, 3, 8, 6), (1, 4))
    with pytest.raises(NotAvailableYetError, match="Text has no input size"):
        get_input_size_from_space(spaces.Text(3))


def test_plain_networks_have_the_shapes_that_are_asked_for() -> None:
    from agilerl.utils.evolvable_networks import create_mlp, create_simba, get_activation, is_image_space

    net = create_mlp(input_size=4, output_size=2, hidden_size=[8, 6], output_activation="Tanh", layer_norm=True)
    assert isinstance(net, nn.Sequential)
    assert [tuple(m.weight.shape) for m in net if isinstance(m, nn.Linear)] == [(8, 4), (6, 8), (2, 6)]
    assert net(torch.randn(3, 4)).abs().max() <= 1
    simba = create_simba(input_size=4, output_size=2, hidden_size=8, num_blocks=1)
    assert simba(torch.randn(3, 4)).shape == (3, 2)
    assert (get_activation("ELU").__class__, get_activation(None).__class__) == (nn.ELU, nn.Identity)
    assert is_image_space(spaces.Box(0, 255, (3, 8, 8), np.uint8))
    assert not is_image_space(VECTOR)
    with pytest.raises(ConfigError, match="unknown activation"):
        get_activation("Elu2")


def test_layers_that_stand_alone_are_ready_and_draw_their_own_noise() -> None:
    from agilerl.modules.custom_components import GumbelSoftmax, NoisyLinear

    layer, x = NoisyLinear(4, 3), torch.ones(2, 4)
    assert layer.weight.abs().max() <= 0.5
    first = layer(x)
    layer.reset_noise()
    assert not torch.equal(layer(x), first)
    layer.eval()
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)
    drawn = GumbelSoftmax()(torch.zeros(4000, 2), tau=0.1)
    torch.testing.assert_close(drawn.sum(-1), torch.ones(4000))
    assert drawn.argmax(-1).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_a_population_is_printed_and_plotted(capsys: pytest.CaptureFixture[str]) -> None:
    from agilerl.utils.utils import plot_population_score, print_hyperparams

    pop = create_population("DQN", NET, observation_space=VECTOR, action_space=CHOICE, population_size=2)
    pop[0].fitness, pop[0].steps = [1.0, 2.0, 6.0], [10, 20, 30]
    print_hyperparams(pop)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("agent 0: mean of 5 fitnesses 3.00; ")
    assert "lr 0.0001" in lines[0]
    assert "none yet" in lines[1]
    pytest.importorskip("matplotlib").use("Agg")
    (axes,) = plot_population_score(pop).axes
    assert axes.lines[0].get_xydata().tolist() == [[10, 1], [20, 2], [30, 6]]


# --- probe environments ---------------------------------------------------------------------------------------------

KINDS = [f"{actions}{shown}" for actions in ("", "ContActions") for shown in ("Env", "ImageEnv", "DictEnv")]
LESSONS = ("ConstantReward", "ObsDependentReward", "DiscountedReward", "FixedObsPolicy", "Policy")
PROBES = [*(f"{lesson}{kind}" for lesson in LESSONS for kind in KINDS), "PolicyContActionsImageEnvSimple", "MemoryEnv"]


def test_there_are_thirty_two_of_them() -> None:
    assert len(set(PROBES)) == 32
    assert len({getattr(probes, name) for name in PROBES}) == 32


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_shows_what_its_name_says(name: str) -> None:
    env = getattr(probes, name)()
    form = "Dict" if "Dict" in name else "Image" if "Image" in name or name == "MemoryEnv" else ""
    assert type(env.observation_space) is {"Dict": spaces.Dict, "Image": spaces.Box, "": spaces.Discrete}[form]
    if form == "Dict":
        assert set(env.observation_space.spaces) == {"discrete", "box"}
    if "Image" in name:
        assert env.observation_space.shape == (1, 3, 3)
    assert isinstance(env.action_space, spaces.Box if "ContActions" in name else spaces.Discrete)
    if "ContActions" in name:
        width = 2 if name in ("PolicyContActionsEnv", "PolicyContActionsImageEnv", "PolicyContActionsDictEnv") else 1
        assert env.action_space == spaces.Box(0, 1, (width,), np.float32)
    obs, info = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert info == {}
    steps, over = 0, False
    while not over:
        _, _, over, _, _ = env.step(env.action_space.sample())
        steps += 1
    assert steps == {"Disc": 2, "Memo": 3}.get(name[:4], 1)


@pytest.mark.parametrize("name", [name for name in PROBES if name != "MemoryEnv"])
def test_a_probe_takes_actions_in_every_published_form_and_says_its_values(name: str) -> None:
    env = getattr(probes, name)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice on boxes of one value
        check_env(env, skip_render_check=True)
    env.reset(0, None)
    action = env.action_space.sample()
    rewards = set()
    for given in (action, np.asarray(action), [action], np.asarray(action).reshape(1, -1), torch.as_tensor(action)):
        env.reset(1)
        rewards.add(env.step(given)[1])
    assert len(rewards) == 1
    with pytest.raises(EnvError, match="is outside of"):
        env.step(np.asarray(action) + 2)
    with pytest.raises(EnvError, match="is outside of"):
        env.step(np.zeros(5))
    for state in range(env.num_states):
        best = env.policy_values[state]
        env.state = state
        reward = env.step(env.action_space.sample() if best is None else best)[1]
        last = 2 if "Dict" in name else 1  # both keys pay
        bootstrap = 0.99 * last * (state == 0) if "Discounted" in name else 0
        assert env.v_values[state] == pytest.approx([reward + bootstrap])
        assert max(env.q_values[state]) == pytest.approx(env.v_values[state][0])


def test_rewards_of_probes_by_hand() -> None:
    env = probes.PolicyEnv()
    assert env.q_values == [[1, -1], [-1, 1]]
    box = probes.PolicyContActionsEnv()
    assert box.policy_values == [[1, 0], [0, 1]]
    box.state = 0
    assert box.step([0.75, 0.5])[1] == -0.3125  # -(0.25² + 0.5²)
    fixed = probes.FixedObsPolicyContActionsEnv()
    assert fixed.step([0.25])[1] == -0.5625  # -(1 - 0.25)²
    assert fixed.values_of(np.array([[0.0]]), 0.9) == pytest.approx([-1])
    simple = probes.PolicyContActionsImageEnvSimple()
    assert simple.policy_values == [[0], [1]]


def test_the_keys_of_a_dictionary_have_values_of_their_own() -> None:
    """States (discrete, box): (0, 0), (0, 1), (1, 0), (1, 1)."""
    seen = [(int(obs["discrete"]), int(obs["box"].mean())) for obs in probes.PolicyDictEnv().observations]
    assert seen == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert probes.ObsDependentRewardDictEnv().q_values == [[1], [-1], [-1], [1]]
    assert probes.PolicyDictEnv().q_values == [[1, -1], [-1, -1], [-1, -1], [-1, 1]]
    assert probes.PolicyContActionsDictEnv().policy_values == [[1, 0], [1, 0], [1, 0], [0, 1]]
    last = probes.DiscountedRewardDictEnv()
    assert last.q_values == [[pytest.approx(1.98)], [2]]
    last.reset()
    assert [last.step(0)[1] for _ in range(2)] == [0, 2]


def test_probes_take_what_agents_return() -> None:
    for cls, name in (
        (DQN, "PolicyEnv"),
        (PPO, "PolicyImageEnv"),
        (PPO, "PolicyContActionsEnv"),
        (TD3, "PolicyContActionsDictEnv"),
    ):
        env = getattr(probes, name)()
        agent = cls(env.observation_space, env.action_space, seed=1)
        agent.set_training_mode(False)
        obs, _ = env.reset(seed=1)
        action = agent.get_action(obs)
        action = action[0] if isinstance(action, tuple) else action
        assert np.shape(action)[0] == 1
        env.step(action)
        env.reset(seed=1)
        env.step(action[0])


ARGUMENTS: dict[str, Any] = {"net_config": NET, "batch_size": 64, "gamma": 0.9, "seed": 1}


def arguments(env: Any, **more: Any) -> dict[str, Any]:
    return {"observation_space": env.observation_space, "action_space": env.action_space, **ARGUMENTS, **more}


def shown(names: list[str], fast: tuple[str, ...]) -> list[Any]:
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names if name != "MemoryEnv"]


def network_for(name: str) -> dict[str, Any]:
    if "Image" in name:
        encoder: Any = {"channel_size": [8], "kernel_size": [3], "stride_size": [1]}
    elif "Dict" in name:
        cnn = {"channel_size": [8], "kernel_size": [3], "stride_size": [2]}
        encoder = {"latent_dim": 16, "cnn_config": cnn, "mlp_config": {"hidden_size": [16]}}
    else:
        encoder = {"hidden_size": [32]}
    return {"encoder_config": encoder, "head_config": {"hidden_size": [32]}, "latent_dim": 16}


@pytest.mark.parametrize(
    "name", shown([n for n in PROBES if "ContActions" not in n], ("DiscountedRewardEnv", "PolicyDictEnv"))
)
def test_values_are_learned_and_checked(name: str) -> None:
    env = getattr(probes, name)()
    given = arguments(env, lr=5e-3, tau=0.1, net_config=network_for(name))
    probes.check_q_learning_with_probe_env(env, DQN, given, ReplayBuffer(max_size=1000), 500, "cpu")


@pytest.mark.parametrize("name", shown([n for n in PROBES if "ContActions" in n], ("PolicyContActionsEnv",)))
def test_critics_and_policies_are_learned_and_checked(name: str) -> None:
    env = getattr(probes, name)()
    # A policy that learns as fast as its critic is at the bounds, where tanh is flat, before the critic knows better.
    given = arguments(env, lr_actor=2e-3, lr_critic=5e-3, tau=0.1, net_config=network_for(name))
    updates = 1200 * env.action_space.shape[0] * (2 if "FixedObs" in name or "Dict" in name else 1)  # slopes are small
    probes.check_policy_q_learning_with_probe_env(env, DDPG, given, ReplayBuffer(max_size=1000), updates, "cpu")


@pytest.mark.parametrize("name", shown(PROBES, ("DiscountedRewardEnv", "FixedObsPolicyContActionsEnv")))
def test_rollouts_teach_values_and_policies_and_are_checked(name: str) -> None:
    env = getattr(probes, name)()
    squashed = {"squash_output": True} if "ContActions" in name else {}
    net = {**network_for(name), **squashed}
    # The entropy bonus keeps a squashed policy away from the bounds, where its actions no longer change.
    given = arguments(env, lr=3e-3, learn_step=64, ent_coef=0.01 if squashed else 0.0, clip_value_loss=False)
    probes.check_policy_on_policy_with_probe_env(env, PPO, {**given, "net_config": net}, 600)


def test_a_check_fails_where_nothing_was_learned() -> None:
    env = probes.ConstantRewardEnv()
    with pytest.raises(AssertionError, match="DQN has not learned Q of ConstantRewardEnv"):
        probes.check_q_learning_with_probe_env(env, DQN, arguments(env, lr=1e-9), ReplayBuffer(max_size=600), 1)
    box = probes.PolicyContActionsEnv()
    slow = arguments(box, lr_actor=1e-9, lr_critic=1e-9)
    with pytest.raises(AssertionError, match="TD3 has not learned the policy of"):
        probes.check_policy_q_learning_with_probe_env(box, TD3, slow, ReplayBuffer(max_size=600), 1)
    with pytest.raises(AssertionError, match="PPO has not learned V of"):
        probes.check_policy_on_policy_with_probe_env(env, PPO, arguments(env, lr=1e-9, learn_step=8), 1)


def test_collecting_by_its_published_name_fills_the_buffer() -> None:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    agent = ppo(num_envs=2, learn_step=16)
    collect_rollouts(agent, env)
    assert (agent.rollout_buffer.size(), agent.rollout_buffer.full) == (16, True)
    env.close()
