"""Who is kept as the best, what rescoring decides, and what a birth says that changed nothing; by hand, small."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import agilerl
from agilerl.algorithms import DDPG, DQN
from agilerl.collect.evaluator import Evaluator
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo import HyperparameterConfig, Mutations, RLParameter, TournamentSelection
from agilerl.hpo.mutation import MutationRecord
from agilerl.telemetry.record import BaseSink
from agilerl.training import stop_rule
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

OBS, CHOICE = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)


class Idle(gym.Env[np.ndarray, int]):
    """Nothing happens, for four steps."""

    observation_space, action_space = OBS, CHOICE

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), 0.0, self.time == 4, False, {}


class Script:
    """Evaluations with results that were written down before: of the population, of the rescored, of confirmations."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        fitness: list[list[float]],
        rescored: list[float] | None = None,
        confirmed: list[float] | None = None,
    ) -> None:
        self.fitness, self.rescores, self.confirmations = list(fitness), [], list(confirmed or [])
        self.first: list[Any] = []  # the members of the first generation

        def population(_: Evaluator, learner: Any, generation: int, episodes: int | None = None) -> list[float]:
            self.first = self.first or list(learner.agents)
            return self.fitness[generation]

        def rescore(_: Evaluator, agents: Any, generation: int, count: int) -> list[float]:
            self.rescores.append([agent.index for agent in agents])
            return list(rescored or [])

        def held_out(_: Evaluator, learner: Any, generation: int, count: int | None = None) -> float:
            return self.confirmations.pop(0)

        for name, function in {"population": population, "rescore": rescore, "held_out": held_out}.items():
            monkeypatch.setattr(Evaluator, name, function)

    def train(self, **options: Any) -> Any:
        return agilerl.train(
            Idle, "DQN", population=len(self.fitness[0]), steps=4 * len(self.fitness), evo_steps=4, num_envs=1,
            device="cpu", out=None, verbose=False, eval_screen=0, confirm_screen=0, scheme="tournament",
            founders="equal", restarts=False, **{"confirm_episodes": 0, **options},
        )  # fmt: skip


# --- the best agent


@pytest.mark.parametrize(
    ("fitness", "index", "kept"),
    [
        ([[3, 1]], 0, [3]),
        ([[3, 1], [5, 2]], 0, [3, 5]),
        ([[3, 1], [5, 2], [4, 4.5]], 0, [3, 5]),  # 4.5 is not better than 5
        ([[3, 1], [5, 2], [4, 4.5], [0, 6]], 1, [1, 2, 4.5, 6]),
        ([[-7, -9], [-8, -8]], 0, [-7]),
    ],
)
def test_a_worse_agent_never_replaces_the_best(
    fitness: list[list[float]], index: int, kept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Script(monkeypatch, fitness).train(evolution=False)
    assert (run.best.index, run.best.fitness) == (index, kept)


@pytest.mark.parametrize(
    ("fitness", "confirmed", "index", "kept"),
    [
        ([[9, 0], [11, 0]], [2], 0, [9, 11]),  # confirmed with 2: it counts more than 9 that nothing confirmed
        ([[11, 0], [12, 0]], [8, 7], 0, [11]),  # the second confirmation was worse
        ([[11, 0], [7.5, 0]], [8], 0, [11]),
        ([[11, 0], [9.5, 0]], [8], 0, [11, 9.5]),  # above the 8 that was confirmed, by episodes without any deviation
        ([[11, 0], [12, 0], [0, 13]], [8, 7, 8.5], 1, [0, 0, 13]),
    ],
)
def test_neither_a_worse_confirmation_nor_a_lower_fitness_replaces_a_confirmed_best(
    fitness: list[list[float]], confirmed: list[float], index: int, kept: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_rule, "CONFIRMED_GENERATIONS", 0)  # only those that reach the target
    script = Script(monkeypatch, fitness, confirmed=confirmed)
    run = script.train(evolution=False, target_score=10, stop_margin=100, confirm_episodes=3)
    assert (run.best.index, run.best.fitness) == (index, kept)
    assert script.confirmations == []


# --- rescoring


def test_the_two_fittest_are_rescored_and_every_episode_counts_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 episodes and 6 more: 4 and 8 give 7, 2 and 20 give 15.5; member 2 then fathers the next generation."""
    script = Script(monkeypatch, [[1, 4, 2], [0, 0, 0]], rescored=[8, 20])
    run = script.train(eval_episodes=2, elite_rescore_episodes=6, tournament_size=60)
    assert script.rescores == [[1, 2]]
    assert [agent.fitness[-1] for agent in script.first] == [1, 7, 15.5]
    born = [birth for birth in run.lineage if birth.generation == 1]
    assert [(birth.parent, birth.parent_fitness) for birth in born] == [(2, 15.5)] * 2
    assert run.history[0] == [1, 4, 2]


@pytest.mark.parametrize(
    ("fitness", "chosen"),
    [([4.0, 3.0, 2.0, 1.0], [0, 1]), ([1.0, 2.0, 2.0, 2.0], [1, 2]), ([0.0, -5.0, 7.0, 1.0], [2, 3])],
)
def test_rescoring_takes_the_fittest_first_and_of_equals_the_lower_slot(
    fitness: list[float], chosen: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(monkeypatch, [fitness, [0.0] * 4], rescored=[0.0, 0.0])
    script.train(elite_rescore_episodes=1)
    assert script.rescores == [chosen]


# --- births that changed nothing

FULL = {"hidden_size": [16], "min_hidden_layers": 1, "max_hidden_layers": 1, "min_mlp_nodes": 16, "max_mlp_nodes": 16}
AT_LIMITS = {"encoder_config": FULL, "head_config": FULL, "latent_dim": 16, "min_latent_dim": 16, "max_latent_dim": 16}
# Units could go, none can come; tanh leaves no unit dead, whose removal would change nothing on any processor.
ROOM = {**FULL, "min_mlp_nodes": 1, "activation": "Tanh"}
SHRINKS = {"encoder_config": ROOM, "head_config": ROOM, "latent_dim": 16, "min_latent_dim": 1, "max_latent_dim": 16}
FIXED = RLParameter(1e-3, 1e-3)
IMPOSSIBLE: dict[str, tuple[dict[str, Any], Any]] = {
    "architecture at its limits": (AT_LIMITS, lambda: Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=1)),
    "removal beyond its bound": (SHRINKS, lambda: Mutations(0, 1, 0.5, 0, 0, 0, rand_seed=1, removal_bound=0.0)),
    "hyperparameter at its limits": (AT_LIMITS, lambda: Mutations(0, 0, 0, 0, 0, 1, rand_seed=1)),
    "the activation that it has": (
        AT_LIMITS, lambda: Mutations(0, 0, 0, 0, 1, 0, rand_seed=1, activation_selection=["ReLU"])
    ),
}  # fmt: skip


class Births(BaseSink):
    """Keeps the records of all generations."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def generation(self, record: Any) -> None:
        self.records.append(record)


def members(net_config: dict[str, Any]) -> list[DQN]:
    hp = HyperparameterConfig(lr=FIXED)
    return DQN.population(3, OBS, CHOICE, seed=1, net_config=net_config, lr=1e-3, batch_size=4, hp_config=hp)


@pytest.mark.parametrize("why", IMPOSSIBLE)
def test_a_mutation_that_could_not_be_applied_is_recorded_as_none(why: str) -> None:
    net_config, make = IMPOSSIBLE[why]
    pop, mutation = members(net_config), make()
    before = [{name: p.clone() for name, p in agent.actor.state_dict().items()} for agent in pop]
    optimisers = [agent.optimizer for agent in pop]
    mutation.mutation(pop)
    assert [agent.mut for agent in pop] == ["None"] * 3
    assert mutation.last_births == [agent.mutation_record for agent in pop] == [MutationRecord()] * 3
    for agent, weights, optimiser in zip(pop, before, optimisers, strict=True):
        assert agent.lr == 1e-3
        assert agent.optimizer is optimiser
        after = agent.actor.state_dict()
        assert after.keys() == weights.keys()
        assert all(torch.equal(after[name], weights[name]) for name in weights)


@pytest.mark.parametrize("why", IMPOSSIBLE)
def test_the_lineage_says_none_of_a_mutation_that_could_not_be_applied(why: str) -> None:
    net_config, make = IMPOSSIBLE[why]
    sink = Births()
    train_off_policy(
        make_vect_envs(make_env=Idle, num_envs=1), "Idle", pop=members(net_config), memory=ReplayBuffer(100, seed=1),
        max_steps=16, evo_steps=8, eval_steps=2, verbose=False, seed=3, sinks=[sink],
        tournament=TournamentSelection(2, True, 3, seed=1), mutation=make(),
    )  # fmt: skip
    born = [birth for record in sink.records for birth in record.births]
    assert [birth.id for birth in born] == [3, 4, 5, 6]  # the elite is not born again
    for birth in born:
        assert (birth.kind, birth.path, birth.before, birth.after, birth.change) == ("none", "", None, None, None)
    assert [member.mutation for member in sink.records[1].members] == ["founder", "None", "None"]


# --- weights that are drawn anew


@pytest.mark.parametrize("seed", [1, 2])
def test_a_weight_that_is_drawn_anew_has_the_scale_of_its_own_layer(seed: int) -> None:
    """Of a tenth of the weights 5 % are drawn anew; with no noise on the others only these move.

    Tolerances are four standard errors: sqrt(1/n) of a mean, sqrt(1/2n) of a deviation, about sqrt(n) of a count.
    """
    wide = {"hidden_size": [256, 256], "max_mlp_nodes": 256}
    net = {"encoder_config": wide, "head_config": {"hidden_size": [16]}, "latent_dim": 16, "max_latent_dim": 16}
    agent = DDPG(OBS, gym.spaces.Box(-1, 1, (1,)), net_config=net, seed=seed)
    large = [name for name, p in agent.actor.named_parameters() if p.numel() == 256 * 256]
    assert len(large) == 1
    for scale in (1.0, 100.0):
        parameter = dict(agent.actor.named_parameters())[large[0]]
        with torch.no_grad():
            parameter.mul_(scale)
        old = parameter.detach().clone()
        mutation = Mutations(0, 0, 0, 1, 0, 0, mutation_sd=0.0, noise_bound=1e9, super_noise_bound=1e9, rand_seed=seed)
        mutation.mutation([agent])
        assert (agent.mutation_record.path, agent.mutation_record.after) == ("normal", {"scale": 1.0})
        new = dict(agent.actor.named_parameters())[large[0]].detach()
        drawn = new[new != old] / old.std()
        count = len(drawn)
        expected = 0.1 * 0.05 * old.numel()
        assert abs(count - expected) < 4 * expected**0.5
        assert abs(float(drawn.mean())) < 4 * count**-0.5
        assert abs(float(drawn.std()) - 1) < 4 * (2 * count) ** -0.5
