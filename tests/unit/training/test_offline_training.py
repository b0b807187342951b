"""Training from data: what is learned from, when runs are the same, and what mistakes are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import agilerl
from agilerl.collect import updates as updates_module
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.errors import AlgorithmError, ConfigError, RunError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_offline import train_offline
from agilerl.utils.utils import create_population, make_vect_envs

SMALL = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


def data(rows: int = 200, seed: int = 0, **more: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "observations": rng.normal(size=(rows, 4)).astype(np.float32),
        "actions": rng.integers(2, size=rows),
        "rewards": rng.normal(size=rows),
        "terminals": rng.random(rows) < 0.1,
        **more,
    }


def train(dataset: Any = None, memory: Any = None, **more: Any) -> tuple[list[Any], list[list[float]]]:
    env = make_vect_envs("CartPole-v1", num_envs=2)
    population = create_population(
        "CQN",
        observation_space=env.single_observation_space,
        action_space=env.single_action_space,
        net_config=SMALL,
        INIT_HP={"BATCH_SIZE": 16, "LR": 1e-3},
        population_size=2,
        seed=1,
    )
    given: dict[str, Any] = {
        "pop": population,
        "memory": ReplayBuffer(1_000) if memory is None else memory,
        "max_steps": 30,
        "evo_steps": 10,
        "eval_steps": 5,
        "tournament": TournamentSelection(2, True, 2, seed=0),
        "mutation": Mutations(0.3, 0.3, 0.2, 0.1, 0, 0.3, rand_seed=0),
        "verbose": False,
        "seed": 3,
    }
    return train_offline(env, "CartPole-v1", data() if dataset is None else dataset, **{**given, **more})


def weights(population: list[Any]) -> list[np.ndarray]:
    return [p.detach().numpy() for agent in population for p in agent.actor.parameters()]


def test_a_step_is_an_update_of_every_member() -> None:
    population, fitnesses = train()
    assert [agent.steps[-1] for agent in population] == [30, 30]
    assert np.shape(fitnesses) == (3, 2)


def test_the_masks_of_the_data_reach_the_updates_of_every_learner() -> None:
    masks = data()["actions"][:, None] == np.arange(2)  # only the action that was taken is legal
    masked = data(action_masks=masks)
    fused, apart, without = (
        weights(train(dataset, learner=how, mutation=None, tournament=None)[0])
        for dataset, how in ((masked, "fused"), (masked, "sequential"), (data(), "fused"))
    )
    for one, other in zip(fused, apart, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert any(not np.allclose(one, other, atol=1e-4) for one, other in zip(fused, without, strict=True))


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_the_memory_grows_to_hold_the_whole_data_set(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    memory = kind(50)
    train(memory=memory, verbose=True)
    assert len(memory) == 200 - (not data()["terminals"][-1])  # without a successor the last step is left out
    assert "the memory grew from 50 to" in capsys.readouterr().err


def test_what_the_memory_held_gives_way_to_the_data_set() -> None:
    memory = ReplayBuffer(1_000)
    train(memory=memory)
    before = len(memory)
    train(data(rows=100, seed=5), memory=memory)
    assert before > 150
    assert len(memory) <= 100


def test_rewards_are_learned_as_they_are_and_ends_are_kept() -> None:
    memory, given = ReplayBuffer(1_000), data()
    train(given, memory=memory)
    rows = memory.gather(np.arange(len(memory)))
    kept = len(memory)
    assert np.allclose(rows["reward"].numpy(), given["rewards"][:kept], atol=1e-6)
    assert np.array_equal(rows["done"].numpy().astype(bool), given["terminals"][:kept])


@pytest.mark.filterwarnings("ignore:the run goes on with other settings")
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_a_stopped_and_resumed_run_is_the_run_that_never_stopped(learner: str, tmp_path: Path) -> None:
    whole, fitnesses = train(resume=tmp_path / "whole", max_steps=40, learner=learner)
    train(resume=tmp_path / "part", max_steps=20, learner=learner)
    resumed, again = train(resume=tmp_path / "part", max_steps=40, learner=learner)
    assert all(np.array_equal(a, b) for a, b in zip(weights(whole), weights(resumed), strict=True))
    assert fitnesses == again


def test_a_run_goes_on_with_the_data_that_it_began_with_alone(tmp_path: Path) -> None:
    train(resume=tmp_path, max_steps=20)
    with pytest.raises(RunError, match=r"learned from .* fix: the same data"):
        train(data(seed=9), resume=tmp_path, max_steps=40)


def test_a_run_says_which_data_it_learned_from_and_keeps_no_copy(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **data())
    short: dict[str, Any] = {"evo_steps": 10, "eval_episodes": 2, "eval_steps": 5, "confirm_episodes": 0}
    run = agilerl.train("CartPole-v1", "CQN", steps=10, out=tmp_path, verbose=False, dataset=str(path), **short)
    assert str(path) in (run.path / "run.json").read_text()
    assert not list(run.path.glob("replay/*/*"))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"memory": MultiStepReplayBuffer(100, n_step=3, gamma=0.9)}, ConfigError, "data sets fill a ReplayBuffer"),
        ({"dataset": data(observations=np.zeros((200, 3)))}, ShapeError, r"observations are \[3\]; CQN was built"),
        ({"dataset": data(actions=np.full(200, 7))}, ShapeError, "7"),
        ({"dataset": data(rows=0)}, ConfigError, "holds no transition"),
        ({"pop": []}, AlgorithmError, "the population is empty"),
        ({"minari_dataset_id": "a/b-v0"}, ConfigError, "two data sets"),
    ],
    ids=["n-step", "observations", "actions", "nothing", "nobody", "two sets"],
)
def test_each_mistake_is_a_named_error(given: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        train(**given)


def test_an_algorithm_of_data_without_data_says_what_is_missing() -> None:
    with pytest.raises(ConfigError, match=r"learns from a data set, and none is named. fix: dataset="):
        agilerl.train("CartPole-v1", "CQN", steps=10, out=None, verbose=False)


def test_members_that_are_left_learn_in_every_generation() -> None:
    """Half of the members end in the second generation; `training.learning_delay` is for replay that fills."""
    updates = list[set[int]]()

    class Counting:
        def on_generation(self, record: Any) -> None:
            updates.append({member.updates for member in record.members})

    run = agilerl.train(
        "CartPole-v1", "CQN", dataset={**data(), "timeouts": np.arange(200) % 20 == 19}, population=2, steps=64, seed=0,
        out=None, verbose=False, callbacks=[Counting()], batch_size=16, latent_dim=8, eval_steps=4,
        **{"training.evo_steps": 16, "training.eval_episodes": 1, "training.confirm_episodes": 0,
           "evolution.scheme": "halving"},
    )  # fmt: skip
    assert len(run.population) == 1
    assert len(updates) > 4
    assert set.union(*updates) == {16}


def test_importance_weights_are_full_after_the_last_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """30 updates in blocks of ten: β is that of 10, 20 and 30 of 30."""
    seen, usual = [], updates_module.beta_schedule
    monkeypatch.setattr(
        updates_module, "beta_schedule", lambda *given: seen.append((given[1:], usual(*given))) or usual(*given)
    )
    train(memory=PrioritizedReplayBuffer(1_000))
    assert [done for done, _ in seen[::2]] == [(10, 30), (20, 30), (30, 30)]
    assert seen[-1][1] == 1.0
