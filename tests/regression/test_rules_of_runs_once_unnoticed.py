"""Small rules of runs by hand, each of which could be broken once without a test that noticed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.algorithms import CQN, DQN
from agilerl.cli.listing import environments
from agilerl.collect.fitness import MeanReturn
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.components.rows import Changes, Mark
from agilerl.config.schema import Training
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.data.replay_log import ReplayLog
from agilerl.engine.modules import ModuleEngine
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.llm_envs.data import rows_of_batch
from agilerl.ranks import Ranks
from agilerl.runs.directory import RunDirectory
from agilerl.training.best import BestAgent
from agilerl.training.state import SavableLoop
from agilerl.training.store import resumed_notes
from agilerl.training.train_offline import train_offline
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import create_population, make_vect_envs

OBS, CHOICE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}


def test_updates_one_after_another_take_over_changed_hyperparameters() -> None:
    agent = DQN(OBS, CHOICE, net_config=NET, lr=1e-3, gamma=0.9)
    engine = ModuleEngine(agent)
    agent.gamma, agent.lr = 0.5, 2e-3
    engine.refresh()
    assert engine.hp["gamma"].item() == 0.5
    assert engine.hp["lr"].item() == pytest.approx(2e-3)


def test_schedules_follow_the_steps_of_the_run() -> None:
    env = make_vect_envs("CartPole-v1", 2)
    spaces = env.single_observation_space, env.single_action_space
    pop = create_population("PPO", NET, {"LEARN_STEP": 32}, *spaces, num_envs=2, seed=1, population_size=1)
    last, _ = train_on_policy(env, "CartPole-v1", pop=pop, max_steps=128, evo_steps=64, eval_steps=5, verbose=False)
    assert last[0].progress == 0.5, "of its last generation, which began after half of the steps"


def test_an_own_learn_on_data_takes_a_step_an_update() -> None:
    class Own(CQN):
        def learn(self, *args: Any, **kwargs: Any) -> float:
            return 0.0

    rng, env = np.random.default_rng(0), make_vect_envs("CartPole-v1", 2)
    data = {
        "observations": rng.normal(size=(20, 4)), "next_observations": rng.normal(size=(20, 4)),
        "actions": rng.integers(0, 2, 20), "rewards": rng.normal(size=20), "terminals": np.zeros(20, bool),
    }  # fmt: skip
    pop = [Own(env.single_observation_space, CHOICE, net_config=NET, batch_size=4)]
    (agent,), _ = train_offline(
        env,
        "CartPole-v1",
        data,
        pop=pop,
        memory=ReplayBuffer(50),
        max_steps=12,
        evo_steps=12,
        eval_steps=5,
        verbose=False,
    )
    assert agent.steps[-1] == 12


class Copied:
    """An agent as much as keeping the best one needs."""

    def __init__(self, index: int = 0) -> None:
        self.index, self.scores, self.fitness, self.mut, self.mutation_record = index, [], [1.0], "lr", None

    def clone(self) -> Copied:
        return self


def test_who_is_no_fitter_than_a_confirmed_mean_is_no_rival() -> None:
    best = BestAgent()
    best.offer(Copied(0), 9.0, None, 0)
    best.confirm(lambda agent: MeanReturn(8.0))
    best.offer(Copied(1), 7.0, None, 1)
    assert not best.has_rivals
    best.offer(Copied(2), 8.5, None, 1)
    assert best.has_rivals


def test_an_elite_that_changes_gets_an_id_that_no_other_child_has() -> None:
    population = [Copied(0), Copied(1)]
    children = [Copied(0), Copied(2)]
    tournament = SimpleNamespace(select=lambda pop: (pop[0], children), parents=[0, 0])
    evolution = TournamentEvolution(tournament, SimpleNamespace(mutation=lambda pop: pop), keeps_elite_id=False)
    after, births = evolution.next(population, [], 1)
    assert [agent.index for agent in after] == [3, 2] == [birth.id for birth in births]


def notes_of(stopped: str) -> list[str]:
    """Notes of a resumed run of one member that has made its 100 steps."""
    options = LoopOptions(max_steps=100, target=5.0, patience=3)
    result = SimpleNamespace(generations=4, stopped=stopped)
    return resumed_notes(options, result, [SimpleNamespace(steps=[100])], None)  # type: ignore[arg-type]


def test_a_finished_run_says_what_ended_it_and_what_goes_on() -> None:
    assert notes_of("target")[1] == "finished: it has reached its target of 5; another value of target goes on"
    assert notes_of("plateau")[1].startswith("finished: nothing had improved for 3 generations; another")
    assert notes_of("budget")[1].startswith("finished: it has used its budget (100 steps of one member)")


def test_the_budget_of_a_run_is_saved_as_it_was_asked_for() -> None:
    loop: Any = SimpleNamespace(
        collector=SimpleNamespace(facts=lambda: {"learner": "fused", "env_backend": "step", "num_envs": 1}),
        seed=1, options=OffPolicyOptions(max_steps=400), asked_steps=100, env_id="Hills", ranks=SimpleNamespace(size=1),
        probe=SimpleNamespace(is_deterministic=True),
    )  # fmt: skip
    assert SavableLoop(loop).facts()["options"]["max_steps"] == 100


class Ring:
    """A replay buffer of no rows, whose images are placed anew with every append."""

    def __init__(self) -> None:
        self.epoch = 0

    def changes(self, mark: Mark | None) -> Changes:
        return Changes(0, 0, 0, None, {"numbers": np.arange(1), "epochs": np.arange(1), "parts": {}})

    def mark(self) -> Mark:
        self.epoch += 1
        return Mark(0, 0, self.epoch)

    def needs(self) -> Mark:
        return Mark(0, 0, self.epoch - 1)  # of the newest images alone


def test_chunks_whose_images_are_gone_go_too(tmp_path: Path) -> None:
    log, memory = ReplayLog(tmp_path), Ring()
    for _ in range(3):
        log.append(memory)
        assert len(log.chunks) == 1


def test_runs_are_numbered_after_the_highest(tmp_path: Path) -> None:
    (tmp_path / "Hills" / "dqn-0007").mkdir(parents=True)
    (tmp_path / "Hills" / "ppo-0002").mkdir()
    assert [RunDirectory.create(tmp_path, "Hills", algo).path.name for algo in ("DQN", "PPO")] == [
        "dqn-0008",
        "ppo-0003",
    ]


def test_epsilon_may_stay_as_it_is() -> None:
    assert Training(eps_start=0.3, eps_end=0.3).eps_end == 0.3


def test_ranks_share_the_rows_of_a_batch() -> None:
    rows = [rows_of_batch(3, 2, rank, 2, 40, seed=1) for rank in (0, 1)]
    assert rows[0] + rows[1] == rows_of_batch(3, 4, 0, 1, 40, seed=1)


def test_every_rank_gets_something() -> None:
    four = Ranks()
    four.size = 4
    assert four.shares(2) == [1, 1, 1, 1]
    assert four.shares(6) == [1, 2, 1, 2]


@pytest.mark.thorough
def test_the_newest_version_is_the_highest_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.registry["CartPole-v1"]
    monkeypatch.setattr(gym, "registry", {"Cart-v3": spec, "Cart-v2": spec})
    lines = {each.name: str(each) for each in environments() if each.name.startswith("Cart-")}
    assert lines["Cart-v3"].split() == ["Cart-v3"]
    assert len(lines["Cart-v2"].split()) > 1
