"""What evaluation plays, and with what: quiet policies, episodes of its own, new streams in every generation."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import DQN, PPO, RainbowDQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.hpo import HyperparameterConfig, Mutations, RLParameter, TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs

OBS, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(3)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


class Choices(gym.Env[np.ndarray, int]):
    """Random observations, the action is the reward, 20 steps; keeps the seeds of all resets that have one."""

    observation_space, action_space = OBS, CHOICE
    log: ClassVar[list[int]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.log.append(seed)
        self.time = 0
        return self._seen(), {}

    def _seen(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self._seen(), float(action), self.time == 20, False, {}


class Stairs(Choices):
    """The observation is the time alone: the same steps in every episode."""

    def _seen(self) -> np.ndarray:
        return np.array([self.time / 20, 0], np.float32)


def envs(env: Any = Choices, lanes: int = 2) -> Any:
    return make_vect_envs(make_env=env, num_envs=lanes)


# --- noise


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_the_population_is_evaluated_without_the_noise_of_its_noisy_layers(learner: str) -> None:
    """Fitness equals that of the same weights with no noise in them at all; nothing is learned in between."""
    histories = []
    for scale in (50.0, 0.0):
        pop = RainbowDQN.population(2, OBS, CHOICE, seed=1, net_config=NET, num_atoms=5)
        for agent in pop:
            noise = [p for name, p in agent.actor.named_parameters() if name.endswith("_sigma")]
            assert noise, "noisy layers"
            with torch.no_grad():
                for part in noise:
                    part.mul_(scale)
        _, history = train_off_policy(
            envs(), "Choices", pop=pop, memory=ReplayBuffer(100, seed=1), learning_delay=10**6, max_steps=40,
            evo_steps=20, eval_loop=3, verbose=False, seed=3, learner=learner,
        )  # fmt: skip
        histories.append(history)
    assert histories[0] == histories[1]
    assert len(histories[0]) == 2


# --- episodes

MEMBERS, GENERATIONS = 2, 3
KINDS = {"training": MEMBERS, "fitness": MEMBERS * 2, "confirmation": 3, "rescoring": 2 * 4}  # seeded resets, in order

RANDOM_EPISODES = 5  # before generation 0


@pytest.fixture(scope="module")
def played() -> Iterator[list[dict[str, list[int]]]]:
    """Seeds by generation and use, and at the end those of random play and of a final test; the last generation is not
    rescored."""
    Choices.log.clear()
    run = agilerl.train(
        Choices, "DQN", population=MEMBERS, steps=20 * GENERATIONS, evo_steps=20, num_envs=1, eval_episodes=2,
        target_score=-1.0, confirm_episodes=3, stop_margin=1e6, elite_rescore_episodes=4, seed=5, device="cpu",
        out=None, verbose=False, eval_members=None, confirm_screen=0, scheme="tournament", founders="equal",
        restarts=False,
    )  # fmt: skip
    run.best.evaluate(5, env=Choices())
    left = iter(Choices.log)
    random_play = list(itertools.islice(left, RANDOM_EPISODES))
    found = [{use: list(itertools.islice(left, count)) for use, count in KINDS.items()} for _ in range(GENERATIONS - 1)]
    found.append({use: list(itertools.islice(left, count)) for use, count in KINDS.items() if use != "rescoring"})
    found.append({"random play": random_play, "final test": list(left)})
    assert len(run.history) == GENERATIONS
    yield found
    Choices.log.clear()


def test_training_fitness_rescoring_confirmation_and_final_test_share_no_episode_in_any_generation(
    played: list[dict[str, list[int]]],
) -> None:
    owner: dict[int, str] = {}
    for generation, uses in enumerate(played):
        for use, numbers in uses.items():
            for number in set(numbers):
                place = f"{use} of generation {generation}"
                assert number not in owner, f"{place} plays an episode of {owner.get(number)}"
                owner[number] = place
    assert len(played[-1]["final test"]) == 5


def test_all_members_are_compared_on_the_same_episodes_and_train_on_their_own(
    played: list[dict[str, list[int]]],
) -> None:
    for uses in played[:-1]:
        assert len(set(uses["training"])) == MEMBERS
        assert uses["fitness"] == uses["fitness"][:2] * MEMBERS
        assert len(set(uses["fitness"])) == 2
        assert len(set(uses["confirmation"])) == 3
        if "rescoring" in uses:
            assert uses["rescoring"] == uses["rescoring"][:4] * 2
            assert len(set(uses["rescoring"])) == 4


def test_tests_of_one_agent_and_its_final_test_share_no_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, log = DQN(OBS, CHOICE, net_config=NET, seed=1), []
    monkeypatch.setattr(Choices, "log", log)
    for _ in range(2):
        agent.test(Choices(), loop=4)
    agent.evaluate(4, env=Choices())
    assert len(log) == len(set(log)) == 3 * 4


# --- streams


def test_streams_and_seeds_of_different_keys_have_nothing_in_common() -> None:
    keys = list(itertools.product((0, 1), Purpose, range(4), range(3)))
    assert len({float(stream(*key).random()) for key in keys}) == len(keys)
    blocks = [seeds(run, purpose, 4, generation, member) for run, purpose, generation, member in keys]
    assert len({int(number) for block in blocks for number in block}) == 4 * len(keys)
    assert stream(1, Purpose.REPLAY, 2, 3).random() == stream(1, Purpose.REPLAY, 2, 3).random()


def position(rng: np.random.Generator) -> int:
    """Where a generator stands in its stream."""
    return int(rng.bit_generator.state["state"]["state"])


def test_exploration_and_replay_never_draw_from_where_they_drew_in_another_generation_or_for_another_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    explored: list[int] = []
    sampled: list[int] = []
    draw, sample = DQN.draw_exploration, ReplayBuffer.sample_indices

    def drawing(self: DQN, rng: np.random.Generator, shape: Any) -> Any:
        explored.append(position(rng))
        return draw(self, rng, shape)

    def sampling(self: ReplayBuffer, rng: np.random.Generator, shape: Any) -> Any:
        sampled.append(position(rng))
        return sample(self, rng, shape)

    monkeypatch.setattr(DQN, "draw_exploration", drawing)
    monkeypatch.setattr(ReplayBuffer, "sample_indices", sampling)
    train_off_policy(
        envs(), "Choices", pop=DQN.population(2, OBS, CHOICE, seed=1, net_config=NET, batch_size=4, learn_step=2),
        memory=ReplayBuffer(100, seed=1), max_steps=60, evo_steps=20, eval_steps=1, verbose=False, seed=3,
    )  # fmt: skip
    assert len(explored) >= 2 * 3
    assert len(sampled) >= 2 * 3 * 9
    assert len(set(explored + sampled)) == len(explored + sampled)


def test_ppo_explores_and_shuffles_anew_in_every_generation_and_for_every_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows of a rollout are the same sixteen times of day each time; their order in the minibatch is drawn."""
    explored: list[int] = []
    orders: list[tuple[float, ...]] = []
    draw, update = PPO.draw_exploration, PPO.update

    def drawing(self: PPO, rng: np.random.Generator, shape: Any) -> Any:
        explored.append(position(rng))
        return draw(self, rng, shape)

    def updating(self: PPO, engine: Any, batch: Any) -> Any:
        orders.extend(tuple(rows) for rows in batch.obs[..., 0].reshape(-1, 16).tolist())
        return update(self, engine, batch)

    monkeypatch.setattr(PPO, "draw_exploration", drawing)
    monkeypatch.setattr(PPO, "update", updating)
    options = {"learn_step": 16, "batch_size": 16, "update_epochs": 1, "net_config": NET}
    train_on_policy(
        envs(Stairs, 1), "Stairs", pop=PPO.population(2, OBS, CHOICE, seed=1, **options), max_steps=48, evo_steps=16,
        eval_steps=1, verbose=False, seed=3,
    )  # fmt: skip
    assert len(orders) == 2 * 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert len(set(orders)) == len(orders)
    assert len(explored) >= 2 * 3
    assert len(set(explored)) == len(explored)


class Counted:
    """A member whose fitness is its index."""

    def __init__(self, index: int) -> None:
        self.index, self.fitness = index, [float(index)]

    def clone(self, index: int | None = None) -> Counted:
        return Counted(self.index if index is None else index)


def test_selection_and_mutation_draw_anew_in_every_generation() -> None:
    tournament = TournamentSelection(1, False, 16, seed=3)
    chosen = []
    for _ in range(4):
        tournament.select([Counted(i) for i in range(16)])
        chosen.append(tuple(tournament.parents))
    assert len(set(chosen)) == 4
    mutation = Mutations(0, 0, 0, 0, 0, 1, rand_seed=3)
    changed = []
    for _ in range(4):
        hp = HyperparameterConfig(lr=RLParameter(1e-5, 1e-1), batch_size=RLParameter(2, 512, dtype=int))
        mutation.mutation([DQN(OBS, CHOICE, index=i, net_config=NET, seed=i, hp_config=hp) for i in range(12)])
        changed.append(tuple((birth.path, birth.after) for birth in mutation.last_births))
    assert len(set(changed)) == 4
    assert all(len(set(births)) > 1 for births in changed), "slots draw for themselves"
