"""Whole scripts in the style of the published library, from the population to the frames of a film.

Each runs twice: with few steps in the fast suite, where its shapes and files are asserted, and to a learned score in
the slow one. Scores are means over episodes; a policy that acts at random has about 22 on CartPole-v1 and -1,200 on
Pendulum-v1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import DQN, PPO, TD3
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.components import ReplayBuffer, Transition
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.base import EvolvableModule
from agilerl.networks.actors import DeterministicActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.rollouts import collect_rollouts_recurrent
from agilerl.training.train_off_policy import train_off_policy
from agilerl.typing import BPTTSequenceType, NetConfigType
from agilerl.utils.utils import create_population, make_vect_envs
from agilerl.wrappers.agent import RSNorm

pytest.importorskip("pygame")  # draws the frames


def film(agent: Any, env: gym.Env[Any, Any], episodes: int, seed: int = 100) -> tuple[list[float], np.ndarray]:
    """Scores of whole episodes with `get_action`, and the last frame: the published loop of a trained agent."""
    agent.set_training_mode(False)
    scores, frame = [], np.empty(0)
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        hidden = agent.get_initial_hidden_state(1) if getattr(agent, "recurrent", False) else None
        score, done = 0.0, False
        while not done:
            if episode == 0:
                frame = np.asarray(env.render())
            if hidden is not None:
                action, _, _, _, hidden = agent.get_action(obs, hidden_state=hidden)
            else:
                action = agent.get_action(obs)
                action = action[0] if isinstance(action, tuple) else action
            obs, reward, terminated, truncated, _ = env.step(action[0])
            score, done = score + float(reward), terminated or truncated
        scores.append(score)
    env.close()
    return scores, frame


# --- DQN: normalised observations, a network of one's own, evolution ------------------------------------------------


class DuellingNetwork(EvolvableNetwork):
    """Q(s, a) as a value and what each action is better by, from one head."""

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Discrete,
        encoder_config: NetConfigType | None = None, head_config: NetConfigType | None = None,
        min_latent_dim: int = 8, max_latent_dim: int = 128, latent_dim: int = 32, device: str = "cpu",
        random_seed: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            observation_space, encoder_config=encoder_config, action_space=action_space, min_latent_dim=min_latent_dim,
            max_latent_dim=max_latent_dim, latent_dim=latent_dim, device=device, random_seed=random_seed,
        )  # fmt: skip
        self.num_actions = int(action_space.n)
        self.build_network_head(head_config)

    def build_network_head(self, net_config: NetConfigType | None = None) -> None:
        self.head_net = self.create_mlp(
            num_inputs=self.latent_dim, num_outputs=self.num_actions + 1, name="value", net_config=net_config
        )

    def forward(self, obs: Any) -> torch.Tensor:  # type: ignore[override]
        outputs = self.head_net(self.extract_features(obs))
        value, advantage = outputs[..., :1], outputs[..., 1:]
        joined: torch.Tensor = value + advantage - advantage.mean(-1, keepdim=True)
        return joined

    def recreate_network(self, **kwargs: Any) -> None:
        self.recreate_encoder()
        head = self.create_mlp(
            num_inputs=self.latent_dim, num_outputs=self.num_actions + 1, name="value",
            net_config=self.head_net.net_config,
        )  # fmt: skip
        self.head_net = EvolvableModule.preserve_parameters(self.head_net, head)


def network(env: Any) -> DuellingNetwork:
    sizes: dict[str, Any] = {"encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}}
    return DuellingNetwork(env.single_observation_space, env.single_action_space, **sizes, random_seed=1)


def dqn_script(folder: Path, max_steps: int, evo_steps: int, episodes: int) -> tuple[list[float], np.ndarray, Any]:
    torch.manual_seed(0)
    num_envs = 8
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    pop = create_population(
        algo="DQN",
        INIT_HP={"BATCH_SIZE": 64, "LR": 1e-3, "LEARN_STEP": 2, "GAMMA": 0.99, "TAU": 0.01, "DOUBLE": True},
        observation_space=env.single_observation_space, action_space=env.single_action_space,
        hp_config=HyperparameterConfig(lr=RLParameter(min=3e-4, max=3e-3)),
        actor_network=network(env), agent_wrapper=RSNorm, population_size=2, num_envs=num_envs,
    )  # fmt: skip
    mutations = Mutations(
        no_mutation=0.4, architecture=0.3, new_layer_prob=0.2, parameters=0.1, activation=0.0, rl_hp=0.2, rand_seed=1
    )
    path = folder / "elite.pt"
    pop, fitnesses = train_off_policy(
        env, "CartPole-v1", "DQN", pop, ReplayBuffer(max_size=20_000), max_steps=max_steps, evo_steps=evo_steps,
        eval_steps=None, eval_loop=2, learning_delay=500, eps_start=1.0, eps_end=0.05, eps_decay=0.995,
        tournament=TournamentSelection(2, True, 2, 1, seed=1), mutation=mutations, save_elite=True,
        elite_path=str(path), verbose=False, seed=1, target=490.0,
    )  # fmt: skip
    assert all(isinstance(agent, RSNorm) and isinstance(agent.actor, DuellingNetwork) for agent in pop)
    agent = RSNorm(DQN(env.single_observation_space, env.single_action_space, actor_network=network(env)))
    agent.load_checkpoint(path)  # a file does not hold the code of a network of one's own
    env.close()
    assert agent.obs_rms.count >= 500
    return *film(agent, gym.make("CartPole-v1", render_mode="rgb_array"), episodes), fitnesses


@pytest.mark.thorough
def test_dqn_with_normalised_observations_and_an_own_network_runs(tmp_path: Path) -> None:
    scores, frame, fitnesses = dqn_script(tmp_path, 1_200, 600, 1)
    assert (len(fitnesses), len(fitnesses[0]), frame.shape) == (2, 2, (400, 600, 3))
    assert 8 <= scores[0] <= 500


@pytest.mark.slow
def test_dqn_with_normalised_observations_and_an_own_network_learns(tmp_path: Path) -> None:
    scores, _, _ = dqn_script(tmp_path, 40_000, 4_000, 20)
    assert np.mean(scores) >= 195


# --- TD3: a loop of one's own, and torques of the real size ---------------------------------------------------------


def td3_script(folder: Path, steps: int, episodes: int) -> tuple[list[float], np.ndarray, float]:
    env = gym.make("Pendulum-v1")
    agent = TD3(
        env.observation_space, env.action_space, batch_size=128, lr_actor=1e-3, lr_critic=2e-3, learn_step=1,
        gamma=0.98, tau=0.01, O_U_noise=False, expl_noise=0.1, seed=1,
        net_config={"encoder_config": {"hidden_size": [64]}, "head_config": {"hidden_size": [64]}},
    )  # fmt: skip
    memory = ReplayBuffer(max_size=20_000, device=agent.device, seed=1)
    agent.set_training_mode(True)
    rng = np.random.default_rng(1)
    obs, _ = env.reset(seed=1)
    for step in range(steps):
        begins = step < 500
        action = rng.uniform(-1, 1, 1) if begins else agent.get_action(np.expand_dims(obs, 0))[0]
        torque = DeterministicActor.rescale_action(
            action=action, low=agent.action_low, high=agent.action_high, output_activation="Tanh"
        )
        next_obs, reward, terminated, truncated, _ = env.step(torque)
        row = Transition(obs, np.float32(action), 0.1 * float(reward), next_obs, bool(terminated), device=agent.device)
        memory.add(row.unsqueeze(0))
        if len(memory) >= 256 and step % agent.learn_step == 0:
            agent.learn(memory.sample(agent.batch_size))
        obs = env.reset()[0] if terminated or truncated else next_obs
    env.close()
    path = folder / "td3.pt"
    agent.save_checkpoint(path)
    loaded = TD3.load(path)
    loaded.set_training_mode(False)
    angles = np.linspace(-np.pi, np.pi, 50)
    seen = np.stack([np.cos(angles), np.sin(angles), 4 * np.sin(3 * angles)], -1).astype(np.float32)
    with torch.no_grad():
        np.testing.assert_allclose(loaded.get_action(seen), 2 * loaded.actor(seen).numpy(), rtol=1e-6)
    strongest = float(np.abs(loaded.get_action(seen)).max())
    return *film(loaded, gym.make("Pendulum-v1", render_mode="rgb_array"), episodes), strongest


@pytest.mark.thorough
def test_td3_by_hand_runs(tmp_path: Path) -> None:
    scores, frame, strongest = td3_script(tmp_path, 300, 1)
    assert (frame.shape, len(scores)) == ((500, 500, 3), 1)
    assert -2_000 <= scores[0] < 0
    assert 0 < strongest <= 2


@pytest.mark.slow
def test_td3_by_hand_swings_the_pendulum_up(tmp_path: Path) -> None:
    scores, _, strongest = td3_script(tmp_path, 12_000, 20)
    assert strongest > 1.5, "a policy at half torque does not swing up"
    assert np.mean(scores) >= -250


# --- PPO: the rollout buffer filled by hand, actions evaluated again ------------------------------------------------


def ppo_script(folder: Path, rollouts: int, episodes: int) -> tuple[list[float], np.ndarray]:
    num_envs = 8
    env = make_vect_envs("CartPole-v1", num_envs=num_envs)
    agent = PPO(
        env.single_observation_space, env.single_action_space, batch_size=64, lr=1e-3, learn_step=1024, ent_coef=0.0,
        update_epochs=6, num_envs=num_envs, use_rollout_buffer=True,
        net_config={"encoder_config": {"hidden_size": [64], "activation": "Tanh"}}, seed=1,
    )  # fmt: skip
    obs, _ = env.reset(seed=1)
    for _ in range(rollouts):
        agent.set_training_mode(True)
        for _ in range(agent.rollout_buffer.capacity):
            action, log_prob, _, value = agent.get_action(obs)
            next_obs, reward, terminated, truncated, _ = env.step(action)
            done = np.logical_or(terminated, truncated)
            agent.rollout_buffer.add(
                obs=obs, action=action, reward=reward, done=done, value=value, log_prob=log_prob, next_obs=next_obs
            )
            obs = next_obs
        _, _, _, last_value = agent.get_action(obs)
        agent.rollout_buffer.compute_returns_and_advantages(last_value, done)
        batch = agent.rollout_buffer.get_tensor_batch(32)
        log_prob, entropy, value = agent.evaluate_actions(obs=batch["observations"], actions=batch["actions"])
        torch.testing.assert_close(log_prob.detach(), batch["log_probs"], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(value.detach(), batch["values"], rtol=1e-4, atol=1e-5)
        assert (entropy <= np.log(2) + 1e-6).all()
        assert np.isfinite(agent.learn())
        assert agent.rollout_buffer.size() == 0
    env.close()
    path = folder / "ppo.pt"
    agent.save_checkpoint(path)
    return film(PPO.load(path), gym.make("CartPole-v1", render_mode="rgb_array"), episodes)


@pytest.mark.thorough
def test_ppo_with_a_hand_filled_buffer_runs(tmp_path: Path) -> None:
    scores, frame = ppo_script(tmp_path, 1, 1)
    assert frame.shape == (400, 600, 3)
    assert 8 <= scores[0] <= 500


@pytest.mark.slow
def test_ppo_with_a_hand_filled_buffer_learns(tmp_path: Path) -> None:
    scores, _ = ppo_script(tmp_path, 60, 20)
    assert np.mean(scores) >= 195


# --- recurrent PPO: what is not shown has to be remembered ----------------------------------------------------------


class MaskedCartPole(gym.ObservationWrapper):  # type: ignore[type-arg]
    """CartPole-v1 without its velocities, which follow from what was seen before."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(gym.make("CartPole-v1", render_mode=render_mode))
        self.observation_space = spaces.Box(-5.0, 5.0, (2,), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return np.asarray(observation[[0, 2]], np.float32)


def recurrent_script(folder: Path, rollouts: int, episodes: int) -> tuple[list[float], np.ndarray, list[float]]:
    num_envs = 8
    # Rewards of 0.05: a value loss of small numbers leaves room for the policy's gradient under the same clipping.
    scale = 0.05
    env = make_vect_envs(
        make_env=lambda: gym.wrappers.TransformReward(MaskedCartPole(), lambda reward: scale * float(reward)),
        num_envs=num_envs,
    )
    agent = PPO(
        env.single_observation_space, env.single_action_space, batch_size=16, lr=2e-3, learn_step=1024, ent_coef=0.01,
        update_epochs=6, num_envs=num_envs, recurrent=True, use_rollout_buffer=True, gamma=0.98,
        max_seq_len=32, bptt_sequence_type=BPTTSequenceType.CHUNKED, clip_value_loss=False, seed=1,
        net_config={
            "encoder_config": {"hidden_state_size": 32, "num_layers": 1}, "latent_dim": 32,
            "head_config": {"hidden_size": [32], "activation": "Tanh"},
        },
    )  # fmt: skip
    last: tuple[Any, ...] = (None, None, None, None)
    completed: list[float] = []
    for _ in range(rollouts):
        agent.set_training_mode(True)
        scores, *last = collect_rollouts_recurrent(  # type: ignore[assignment]
            agent, env, last_obs=last[0], last_done=last[1], last_scores=last[2], last_info=last[3]
        )
        completed += [score / scale for score in scores]
        agent.learn()
    env.close()
    path = folder / "recurrent.pt"
    agent.save_checkpoint(path)
    loaded = PPO.load(path)
    keys = {f"{owner}_encoder_{part}" for owner in ("actor", "critic") for part in "hc"}
    assert set(loaded.get_initial_hidden_state(1)) == keys
    return *film(loaded, MaskedCartPole(render_mode="rgb_array"), episodes), completed


@pytest.mark.thorough
def test_recurrent_ppo_runs(tmp_path: Path) -> None:
    scores, frame, completed = recurrent_script(tmp_path, 1, 1)
    assert frame.shape == (400, 600, 3)
    assert 8 <= scores[0] <= 500
    assert 10 <= np.mean(completed) <= 40


@pytest.mark.slow
def test_recurrent_ppo_remembers_velocities(tmp_path: Path) -> None:
    """Without a memory a policy that sees two of the four numbers keeps the pole up for about 60 steps."""
    scores, _, _ = recurrent_script(tmp_path, 60, 20)
    assert np.mean(scores) >= 195
