"""The published training function: signature, accounting, refusals, files, environments, duck-typed agents."""

from __future__ import annotations

import json
import multiprocessing
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from sinks import Kept

from agilerl import errors
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.errors import AgileRLWarning, NotAvailableYetError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}


class Counting(gym.Env[np.ndarray, int]):
    """Counts what happens to it; episodes of 5 steps end by termination."""

    observation_space = gym.spaces.Box(-10, 10, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        self.steps = self.resets = self.closed = self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.resets, self.time = self.resets + 1, 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps, self.time = self.steps + 1, self.time + 1
        return np.full(4, self.time, np.float32), 1.0, self.time == 5, False, {}

    def close(self) -> None:
        self.closed += 1


def population(size: int = 2, **options: Any) -> list[DQN]:
    options = {"batch_size": 8, "learn_step": 2, "net_config": NET, **options}
    return DQN.population(size, Counting.observation_space, Counting.action_space, seed=1, **options)


def train(env: Any = None, pop: list[Any] | None = None, memory: Any = None, **options: Any) -> tuple[list[Any], Any]:
    """80 environment steps per member in two generations, unless told otherwise."""
    mine = make_vect_envs(make_env=Counting, num_envs=4) if env is None else env
    options = {"max_steps": 80, "evo_steps": 40, "eval_steps": 10, "verbose": False, "seed": 3, **options}
    memory = ReplayBuffer(max_size=1000, seed=1) if memory is None else memory
    return train_off_policy(mine, "Counting", pop=population() if pop is None else pop, memory=memory, **options)


def evolution(size: int = 2) -> dict[str, Any]:
    return {"tournament": TournamentSelection(2, True, size, seed=1),
            "mutation": Mutations(0.2, 0.3, 0.3, 0.2, 0.1, 0.2, rand_seed=1)}  # fmt: skip


def updates(agent: DQN) -> int:
    state = agent.optimizer.state_dict()["state"]
    return int(state[0]["step"]) if state else 0


# --- interface


def test_verbose_false_prints_nothing_at_all(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(**evolution())
    assert capfd.readouterr() == ("", "")


def test_verbose_prints_a_line_per_generation_and_the_bar_of_a_terminal_ends_at_its_total(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    train(verbose=True)
    out, err = capfd.readouterr()
    assert "(80/80 per member)" in out + err
    assert "\r" not in out + err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    train(verbose=True)
    out, err = capfd.readouterr()
    assert "80.0/80.0" in out + err
    assert "\x1b[" not in out


def test_more_than_one_process_is_refused_by_name() -> None:
    pop = population()
    with pytest.raises(NotAvailableYetError, match="accelerator") as caught:
        train(pop=pop, accelerator=SimpleNamespace(num_processes=2, is_main_process=True))
    assert "fix:" in str(caught.value)
    assert [a.steps for a in pop] == [[0], [0]], "refused before anything runs"


def test_an_accelerator_of_one_process_is_fine() -> None:
    _, fitness = train(accelerator=SimpleNamespace(num_processes=1, is_main_process=True))
    assert len(fitness) == 2


# --- environments and accounting


@pytest.mark.parametrize("kind", ["single", "gymnasium vector", "make_vect_envs"])
def test_any_environment_trains_and_is_never_closed(kind: str) -> None:
    made = [Counting() for _ in range(3)]
    env: Any = {
        "single": lambda: made[0],
        "gymnasium vector": lambda: SyncVectorEnv([lambda e=e: e for e in made]),
        "make_vect_envs": lambda: make_vect_envs(make_env=Counting, num_envs=3),
    }[kind]()
    closed: list[int] = []
    if kind != "single":
        env.close = lambda **_: closed.append(1)
    recorder = Kept()
    pop, fitness = train(env, sinks=[recorder], max_steps=60, evo_steps=30)
    assert not closed
    assert sum(e.closed for e in made) == 0
    assert [a.steps[-1] for a in pop] == [60, 60]
    assert fitness == [[5.0, 5.0]] * 2
    one_at_a_time = [n for n in recorder.plan.notes if "one member trains at a time" in n]
    assert len(one_at_a_time) == (kind != "make_vect_envs")
    assert recorder.plan.extra["lockstep"] is (kind == "make_vect_envs")


@pytest.mark.thorough
def test_worker_processes_made_for_the_run_are_gone_afterwards() -> None:
    env = make_vect_envs(make_env=Counting, num_envs=2, should_async_vector=True)
    before = {p.pid for p in multiprocessing.active_children()}
    assert len(before) == 2
    train(env, max_steps=8, evo_steps=8, pop=population(2, batch_size=2))
    after = {p.pid for p in multiprocessing.active_children()}
    env.close()
    assert after == before, "the user's two workers, and no others"


def test_evo_steps_need_not_be_a_multiple_of_num_envs_and_the_counts_say_what_ran() -> None:
    memory = ReplayBuffer(max_size=1000)
    recorder = Kept()
    pop, fitness = train(evo_steps=30, max_steps=60, memory=memory, sinks=[recorder])  # 7 vector steps of 4: 28 steps
    assert [a.steps for a in pop] == [[28, 56, 60, 60]] * 2, "three generations, the last one as long as what is left"
    assert len(fitness) == 3
    assert memory.counter == 2 * 60
    assert [r.env_steps for r in recorder.records] == [28, 56, 60]
    assert [r.population_env_steps for r in recorder.records] == [56, 112, 120]
    _, fitness = train(evo_steps=1, max_steps=8)
    assert len(fitness) == 2, "at least one vector step a generation"


def test_exploration_decays_per_vector_step_and_a_generation_starts_where_the_last_one_ended() -> None:
    for lockstep in (True, False):
        recorder = Kept()
        train(eps_start=0.9, eps_end=0.5, eps_decay=0.97, sinks=[recorder], lockstep=lockstep)
        # 10 vector steps a generation; every member of a generation begins with the same epsilon
        assert [r.epsilon for r in recorder.records] == pytest.approx([0.9 * 0.97**10, max(0.5, 0.9 * 0.97**20)])


@pytest.mark.parametrize("lockstep", [True, False])
@pytest.mark.parametrize(("learn_step", "expected"), [(1, 80), (2, 40), (3, 20), (4, 20), (5, 20), (8, 10), (13, 7)])
def test_learn_step_decides_the_number_of_updates(learn_step: int, expected: int, lockstep: bool) -> None:
    # 20 vector steps of 4 lanes, one row each at least. learn_step <= 4: 4 // learn_step updates a vector step; else
    # one update in each (learn_step // 4)-th vector step, the first included.
    pop, _ = train(pop=population(1, learn_step=learn_step, batch_size=4), lockstep=lockstep, evo_steps=80)
    assert updates(pop[0]) == expected


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_members_of_different_batch_size_and_learn_step_train_by_their_own(learner: str) -> None:
    pop = population(3)
    for agent, size, step in zip(pop, (4, 8, 16), (1, 2, 8), strict=True):
        agent.batch_size, agent.learn_step = size, step
    recorder = Kept()
    pop, _ = train(pop=pop, learner=learner, evo_steps=80, sinks=[recorder])
    # In lockstep 12 rows arrive in each of the 20 vector steps. Member 2 needs 16 of them, so at the first vector step
    # it cannot learn yet: 9 of the 10 updates that its interval of 8 // 4 = 2 vector steps gives.
    expected = [20 * 4, 20 * 2, 9]
    assert [updates(a) for a in pop] == expected
    assert [m.updates for m in recorder.records[0].members] == expected


def test_a_population_without_tournament_and_mutation_keeps_its_members() -> None:
    pop = population(3)
    trained, fitness = train(pop=pop)
    assert all(a is b for a, b in zip(trained, pop, strict=True))
    assert [a.fitness for a in pop] == [list(column) for column in zip(*fitness, strict=True)]
    assert [a.mut for a in pop] == [None] * 3


def test_one_of_tournament_and_mutation_warns_that_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    both = evolution()
    for name in both:
        with pytest.warns(AgileRLWarning, match="does nothing. fix: pass"):
            train(**{name: both[name]})


def test_target_stops_and_its_generation_is_not_evolved() -> None:
    trained, fitness = train(target=5.0, **evolution())
    assert len(fitness) == 1
    assert [a.mut for a in trained] == [None, None]


# --- trackers and files


def test_wandb_missing_warns_once_and_trains_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(errors, "_warned", set())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        runs = [train(wb=True)[1] for _ in range(2)]
    assert [len(fitness) for fitness in runs] == [2, 2]
    (warning,) = caught
    assert warning.category is AgileRLWarning
    assert "wandb is not installed. fix: pip install" in str(warning.message)
    assert "The training goes on without it." in str(warning.message)


def test_elite_and_checkpoints_have_the_published_names(tmp_path: Path) -> None:
    elite, path = tmp_path / "new" / "elite.pt", tmp_path / "ck" / "run.pt"
    trained, _ = train(save_elite=True, elite_path=str(elite), checkpoint=40, checkpoint_path=str(path), **evolution())
    assert sorted(p.name for p in path.parent.iterdir()) == ["run_0_40.pt", "run_0_80.pt", "run_1_40.pt", "run_1_80.pt"]
    assert [p.name for p in elite.parent.iterdir()] == ["elite.pt"]
    for slot, agent in enumerate(trained):
        saved = DQN.load(path.parent / f"run_{slot}_80.pt")
        assert saved.index == agent.index
        for p, q in zip(saved.actor.parameters(), agent.actor.parameters(), strict=True):
            assert torch.equal(p, q)
    assert DQN.load(elite).fitness[-1] == 5.0


def test_overwritten_checkpoints_leave_the_steps_out_and_defaults_go_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    train(checkpoint=40, checkpoint_path="ck", overwrite_checkpoints=True, save_elite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Counting-elite_DQN.pt", "ck_0.pt", "ck_1.pt"]
    assert DQN.load("ck_0.pt").steps == [40, 80, 80]
    train(checkpoint=80)
    names = [p.name for p in tmp_path.iterdir() if "EvoHPO" in p.name]
    assert len(names) == 2
    assert all(n.startswith("Counting-EvoHPO-DQN-") and n.endswith("_80.pt") for n in names)


def test_a_checkpoint_between_two_generations_is_written_at_the_next(tmp_path: Path) -> None:
    train(checkpoint=50, checkpoint_path=str(tmp_path / "c"), max_steps=160)
    assert sorted({p.name.split("_")[-1] for p in tmp_path.iterdir()}) == ["120.pt", "160.pt", "80.pt"]


def test_paths_without_their_switch_warn_in_the_published_words(tmp_path: Path) -> None:
    words = [
        "'save_elite' set to False but 'elite_path' has been defined, elite will not be saved unless 'save_elite' is "
        "set to True.",
        "'checkpoint' set to None but 'checkpoint_path' has been defined, checkpoint will not be saved unless "
        "'checkpoint' is defined.",
    ]
    with pytest.warns(AgileRLWarning) as caught:
        train(elite_path=str(tmp_path / "e.pt"), checkpoint_path=str(tmp_path / "c.pt"))
    assert [str(w.message) for w in caught] == words
    assert [w.filename for w in caught] == [__file__] * 2, "shown where the user called"
    assert not list(tmp_path.iterdir())


# --- agents and environments that subclass nothing


class Duck:
    """What published tests call an agent: these names and no base class."""

    algo = "Duck"
    batch_size = 4
    learn_step = 2
    device = "cpu"

    def __init__(self, index: int, actions: int = 2) -> None:
        self.index, self.mut, self.actions = index, None, actions
        self.steps, self.scores, self.fitness = [0], [], []
        self.learned, self.saved, self.epsilons, self.modes = [], [], [], []

    def get_action(self, *args: Any, **kwargs: Any) -> np.ndarray:
        self.epsilons.append(kwargs["epsilon"])
        return np.random.default_rng(0).integers(0, self.actions, len(args[0]))

    def learn(self, experiences: Any) -> float:
        self.learned.append(experiences)
        return 0.5

    def test(self, env: Any, swap_channels: bool = False, max_steps: int | None = None, loop: int = 1) -> float:
        assert (swap_channels, max_steps, loop) == (False, 10, 1)
        self.fitness.append(float(10 - self.index))
        return self.fitness[-1]

    def save_checkpoint(self, path: str) -> None:
        self.saved.append(path)
        Path(path).write_text(json.dumps(self.index))

    def load_checkpoint(self, path: str) -> None: ...

    def wrap_models(self) -> None: ...

    def unwrap_models(self) -> None: ...

    def reset_action_noise(self, indices: Any) -> None: ...

    def set_training_mode(self, training: bool) -> None:
        self.modes.append(training)


class DuckSelection:
    def select(self, pop: list[Any]) -> tuple[Any, list[Any]]:
        return pop[0], pop


class DuckMutation:
    def mutation(self, pop: list[Any]) -> list[Any]:
        for agent in pop:
            agent.mut = "quack"
        return pop


class DuckEnv:
    """No spaces, no base class; integers for rewards and flags."""

    def __init__(self, num_envs: int | None) -> None:
        self.lanes = num_envs or 1
        if num_envs is not None:
            self.num_envs = num_envs
        self.rng = np.random.default_rng(0)

    def reset(self) -> tuple[np.ndarray, dict[str, Any]]:
        return self.rng.random((self.lanes, 4) if hasattr(self, "num_envs") else 4), {}

    def step(self, action: Any) -> tuple[Any, ...]:
        assert np.shape(action) == ((self.lanes,) if hasattr(self, "num_envs") else ())
        flags = [self.rng.integers(0, 2, self.lanes) for _ in range(3)]
        return self.rng.random((self.lanes, 4) if hasattr(self, "num_envs") else 4), *flags, {}


@pytest.mark.parametrize("dialect", ["new", "old"])
@pytest.mark.parametrize("num_envs", [None, 2])
def test_agents_that_subclass_nothing_train_evolve_and_checkpoint(
    num_envs: int | None, dialect: str, tmp_path: Path
) -> None:
    pop = [Duck(i) for i in range(3)]
    names = ["state", "action", "reward", "next_state", "done"]
    memory = ReplayBuffer(1000) if dialect == "new" else ReplayBuffer(memory_size=1000, field_names=names)
    trained, fitness = train_off_policy(
        DuckEnv(num_envs), "duck", "algo", pop, memory, INIT_HP=None, MUT_P=None, max_steps=100, evo_steps=50,
        eval_steps=10, tournament=DuckSelection(), mutation=DuckMutation(), checkpoint=50,
        checkpoint_path=str(tmp_path / "c"), save_elite=True, elite_path=str(tmp_path / "elite.pt"), verbose=False,
    )  # fmt: skip
    assert fitness == [[10.0, 9.0, 8.0]] * 2
    assert [a.steps for a in trained] == [[50, 100, 100]] * 3
    assert [a.mut for a in trained] == ["quack"] * 3
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "c_0_100.pt", "c_0_50.pt", "c_1_100.pt", "c_1_50.pt", "c_2_100.pt", "c_2_50.pt", "elite.pt",
    ]  # fmt: skip
    assert (tmp_path / "elite.pt").read_text() == "0", "the best member, though it cannot be cloned"
    assert all(a.learned for a in trained)
    sample = trained[0].learned[0]
    assert (isinstance(sample, tuple) and len(sample) == 5) if dialect == "old" else set(sample.keys()) >= {"obs"}
    assert all(1.0 >= a.epsilons[0] > a.epsilons[-1] for a in trained)
    assert set(trained[0].modes) == {True, False}


def test_the_elite_of_agents_that_cannot_be_cloned_is_the_fittest_not_the_first(tmp_path: Path) -> None:
    pop = [Duck(i) for i in (2, 0, 1)]
    train_off_policy(DuckEnv(2), "duck", None, pop, ReplayBuffer(100), max_steps=20, evo_steps=20, eval_steps=10,
                     save_elite=True, elite_path=str(tmp_path / "e"), verbose=False)  # fmt: skip
    assert (tmp_path / "e.pt").read_text() == "0"
