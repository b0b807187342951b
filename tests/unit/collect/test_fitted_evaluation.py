"""Training without an environment: what is held out, when runs are the same, and what mistakes are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import agilerl
from agilerl.algorithms import BC_LM, CQL, CQN
from agilerl.collect.fitted import FittedEvaluator, hold_out
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import LoopOptions, OfflineOptions
from agilerl.data.dataset import Dataset, read_dataset
from agilerl.engine.learner import Learner
from agilerl.errors import AlgorithmError, ConfigError, EnvError, RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_offline import train_offline

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
SPACE, CHOICE, BOX = gym.spaces.Box(-9, 9, (4,)), gym.spaces.Discrete(2), gym.spaces.Box(-2, 2, (2,))


def arrays(rows: int = 200, seed: int = 0, box: bool = False, **more: Any) -> dict[str, np.ndarray]:
    """Random transitions; the first number of an observation is that of its row."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(rows, 4)).astype(np.float32)
    obs[:, 0] = np.arange(rows)
    return {
        "observations": obs,
        "next_observations": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.uniform(-2, 2, (rows, 2)) if box else rng.integers(2, size=rows),
        "rewards": rng.normal(size=rows),
        "terminals": rng.random(rows) < 0.1,
        **more,
    }


def train(dataset: Any = None, memory: Any = None, env: Any = None, **more: Any) -> tuple[list[Any], list[list[float]]]:
    given: dict[str, Any] = {
        "pop": CQN.population(2, SPACE, CHOICE, seed=1, net_config=NET, batch_size=16),
        "max_steps": 30,
        "evo_steps": 10,
        "fqe_updates": 20,
        "tournament": TournamentSelection(2, True, 2, seed=0),
        "mutation": Mutations(0.3, 0.3, 0.2, 0.1, 0, 0.3, rand_seed=0),
        "verbose": False,
        "seed": 3,
    }
    memory = ReplayBuffer(1_000) if memory is None else memory
    return train_offline(env, "nowhere", arrays() if dataset is None else dataset, memory=memory, **{**given, **more})


def weights(population: list[Any]) -> list[np.ndarray]:
    return [p.detach().numpy() for agent in population for p in agent.actor.parameters()]


# --- what is held out -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whole_episodes_are_held_out_and_the_rest_is_learned_from(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, share = int(rng.integers(20, 300)), float(rng.uniform(0.05, 0.9))
    data = read_dataset(arrays(rows, seed, timeouts=rng.random(rows) < 0.05))
    kept, held = hold_out(data, share, seed)
    episode = np.concatenate(([0], np.cumsum(data.ended)[:-1]))
    of = {name: part.obs[:, 0].astype(int) for name, part in (("kept", kept), ("held", held))}
    assert sorted([*of["kept"], *of["held"]]) == list(range(rows))
    assert not set(episode[of["kept"]]) & set(episode[of["held"]])
    assert len(set(episode[of["held"]])) == min(episode[-1], max(1, round(share * (episode[-1] + 1))))
    assert np.array_equal(held.reward, data.reward[of["held"]])
    assert np.array_equal(hold_out(data, share, seed)[1].obs, held.obs)


def test_a_target_is_a_return_and_does_not_end_a_run_that_knows_values_alone() -> None:
    """Values of rewards from -1 up are at least -100 at a discount of 0.99: this target would be reached at once."""
    _, fitnesses = train(target=-1e6)
    assert len(fitnesses) == 3


def test_policies_that_write_texts_are_not_judged() -> None:
    space, said = gym.spaces.MultiDiscrete([5] * 6), gym.spaces.MultiDiscrete([3] * 2)
    net = {"n_layer": 1, "n_embd": 8, "n_head": 2, "dim_feedfwd": 32}
    with pytest.raises(AlgorithmError, match=r"BC_LM writes texts token by token\. fix: an environment"):
        train(pop=BC_LM.population(2, space, said, seed=1, net_config=net, batch_size=16))


def test_policies_are_judged_by_what_was_legal() -> None:
    """One action is legal in each row, and it is that which every policy is taken to do there."""
    masks = np.eye(2, dtype=bool)[np.random.default_rng(0).integers(2, size=(2, 200))]
    data = read_dataset(arrays(action_masks=masks[0], next_action_masks=masks[1]))
    _, held = hold_out(data, 0.5, 0)
    rows = held.obs[:, 0].astype(int)
    assert np.array_equal(held.next_mask, masks[1][rows])
    pop: Any = CQN.population(2, SPACE, CHOICE, seed=1, net_config=NET, batch_size=16)
    memory, options = ReplayBuffer(1_000), OfflineOptions()
    fill(memory, held, pop[0], options)
    evaluator, learner = FittedEvaluator(held, memory, options, 0), Learner(pop)
    every = np.arange(len(held))
    for name, mask in (("obs", masks[0]), ("next_obs", masks[1])):
        chosen = evaluator._policies(learner, every, name)
        assert np.array_equal(chosen, np.tile(mask[rows].argmax(1), (2, 1)))


def test_another_seed_holds_other_episodes_out() -> None:
    data = read_dataset(arrays())
    assert not np.array_equal(hold_out(data, 0.2, 0)[1].obs, hold_out(data, 0.2, 1)[1].obs)


def test_members_never_see_the_rows_that_they_are_judged_on() -> None:
    memory = ReplayBuffer(1_000)
    train(memory=memory, held_out=0.4)
    seen = set(memory.gather(np.arange(len(memory)))["obs"][:, 0].long().tolist())
    kept, held = hold_out(read_dataset(arrays()), 0.4, 3)
    assert seen == set(kept.obs[:, 0].astype(int))
    assert not seen & set(held.obs[:, 0].astype(int))
    assert len(held) > 40


# --- training -------------------------------------------------------------------------------------------------------


class Forbidden(gym.Env[Any, Any]):
    """Must not be touched."""

    observation_space, action_space = SPACE, CHOICE

    def reset(self, **more: Any) -> Any:
        raise AssertionError("it was reset")

    def step(self, action: Any) -> Any:
        raise AssertionError("it was stepped")


def test_without_an_environment_and_beside_one_runs_are_the_same_and_it_is_not_touched() -> None:
    (first, values), (again, same) = train(), train(env=Forbidden(), fitness="fqe")
    assert values == same
    assert np.shape(values) == (3, 2)
    assert len({value for generation in values for value in generation}) > 2  # equal policies have equal values
    assert all(np.array_equal(a, b) for a, b in zip(weights(first), weights(again), strict=True))


def test_continuous_policies_are_judged_too() -> None:
    pop = CQL.population(2, SPACE, BOX, seed=1, net_config=NET, batch_size=16, num_samples=2)
    _, values = train(arrays(box=True), pop=pop, max_steps=10)
    assert np.isfinite(values).all()
    assert values[0][0] != values[0][1]


def test_values_are_of_the_rewards_as_they_are_and_not_as_they_are_learned_from(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **arrays())
    short: dict[str, Any] = {"steps": 10, "evo_steps": 10, "dataset": str(path), "fitness": "fqe", "fqe_updates": 5}
    runs = [
        agilerl.train("CartPole-v1", "CQN", out=tmp_path, verbose=False, reward_scale=scale, lr=1e-9, **short)
        for scale in (1.0, 100.0)
    ]
    assert runs[0].history[0] == pytest.approx(runs[1].history[0], abs=1e-3)
    facts = json.loads((runs[0].path / "run.json").read_text())
    assert '"held_out"' in json.dumps(facts)
    assert facts["result"]["evaluation_env_steps"] == 0


def test_what_is_held_out_and_the_scale_of_values_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    train(verbose=True, fqe_gamma=0.95)
    said = capsys.readouterr().err
    assert "discounted by 0.95 (a reward of 1 in every step for ever is 20), on" in said
    assert "held-out episodes" in said


def test_a_run_goes_on_with_the_episodes_that_it_held_out_alone(tmp_path: Path) -> None:
    train(resume=tmp_path, max_steps=20)
    with pytest.raises(RunError, match=r"learned from"):
        train(resume=tmp_path, max_steps=40, held_out=0.3)


def test_who_has_learned_without_an_environment_says_that_it_knows_none() -> None:
    (agent, _), _ = train(max_steps=10)
    with pytest.raises(EnvError, match=r"does not know an environment: .*there was none\. fix: agent\.evaluate\(env="):
        agent.evaluate()


# --- mistakes -------------------------------------------------------------------------------------------------------


class CustomLearn(CQN):
    """Brings its own `learn`."""

    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        return super().learn(experiences, *args, **kwargs)


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"fitness": "returns"}, ConfigError, r"plays episodes, and env is None\. fix: env=make_vect_envs"),
        ({"fitness": "value"}, ConfigError, r"fitness must be 'returns' or 'fqe'"),
        ({"held_out": 1.0}, ConfigError, r"held_out must be in \(0, 1\); got 1\.0\. fix: held_out=0\.2"),
        ({"fqe_gamma": 1.0}, ConfigError, r"fqe_gamma must be in \(0, 1\)"),
        ({"fqe_updates": 0}, ConfigError, r"fqe_updates must be an integer of at least 1"),
        (
            {"dataset": arrays(terminals=np.zeros(200, bool))},
            ConfigError,
            r"holds whole episodes out, and the data set has 1\. fix",
        ),
        (
            {"env": Forbidden(), "fitness": "returns", "held_out": 0.3},
            ConfigError,
            r"held_out=0.3, fqe_updates=20 act only with fitness='fqe'; got",
        ),
        (
            {"pop": CustomLearn.population(2, SPACE, CHOICE, seed=1)},
            AlgorithmError,
            r"CustomLearn brings its own learn\(\)",
        ),
    ],
    ids=["returns", "word", "share", "gamma", "updates", "one episode", "options of another", "own learn"],
)
def test_each_mistake_is_a_named_error(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        train(**given)


def test_a_memory_without_episodes_cannot_be_split() -> None:
    memory = ReplayBuffer(10)
    with pytest.raises(ConfigError, match=r"a memory does not say where they end\. fix: dataset="):
        train_offline(None, "nowhere", None, pop=CQN.population(1, SPACE, CHOICE, seed=1), memory=memory, verbose=False)


def test_only_algorithms_that_learn_from_data_have_such_a_fitness() -> None:
    with pytest.raises(ConfigError, match=r"training\.fitness: means nothing to DQN"):
        agilerl.train("CartPole-v1", "DQN", steps=10, out=None, verbose=False, fitness="fqe")
    assert OfflineOptions().fitness == LoopOptions().fitness == "returns"
    assert isinstance(read_dataset(arrays()), Dataset)
