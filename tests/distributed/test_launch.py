"""What is known without other processes: shares, seeds, plans of minibatches, what a launcher was asked for."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import agilerl
from agilerl import errors, ranks
from agilerl.algorithms import DQN
from agilerl.collect.rewards import RewardScale
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.components.running import RunningMeanStd
from agilerl.engine.rollouts import SequenceRollout, plan_epoch
from agilerl.errors import AgileRLWarning, ConfigError, NotAvailableYetError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.ranks import ONE, ProcessRanks, Ranks, asked_for, check_alone, check_launch, joined
from agilerl.training.distributed import digest
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs


@pytest.fixture(autouse=True)
def nothing_said_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ranks._SIZES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(errors, "_warned", set())


def of_size(size: int, rank: int = 0) -> ProcessRanks:
    return ProcessRanks(rank, size, 1.0)


# -- shares -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size", "shares"), [(64, 2, [32, 32]), (7, 2, [3, 4]), (10, 3, [3, 3, 4])])
def test_a_batch_is_shared_as_equally_as_it_can_be(count: int, size: int, shares: list[int]) -> None:
    assert of_size(size).shares(count) == shares
    assert ONE.shares(count) == [count]


def test_rank_0_has_the_seed_of_the_run_and_the_others_have_their_own() -> None:
    seeds = [of_size(4, rank).seed(7) for rank in range(4)]
    assert seeds[0] == ONE.seed(7) == 7
    assert len(set(seeds)) == 4
    assert seeds == [of_size(2, rank).seed(7) for rank in range(4)]  # whatever the number of ranks


class Beside(Ranks):
    """This rank, and another one that says `others` in turn."""

    size = 2

    def __init__(self, *others: np.ndarray) -> None:
        self.others = list(others)

    def gather_rows(self, values: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(values, np.float64), self.others.pop(0)])


def moments(values: np.ndarray) -> np.ndarray:
    """What a rank says of rows [B, 2]: their means, variances and number; zeros of none."""
    rows = np.full(2, float(len(values)))
    return np.stack([values.mean(0), values.var(0), rows]) if len(values) else np.zeros((3, 2))


@pytest.mark.parametrize(("own", "other"), [(5, 3), (5, 0), (0, 3), (0, 0)])
def test_running_statistics_are_of_the_rows_of_all_ranks(own: int, other: int) -> None:
    rng = np.random.default_rng(0)
    before, here, there = (rng.normal(3, 2, (rows, 2)) for rows in (4, own, other))
    seen, expected = RunningMeanStd(), RunningMeanStd()
    seen.update(before)
    seen.update_over(Beside(moments(there)), here, (2,))
    expected.update(np.concatenate((before, here, there)))
    np.testing.assert_allclose(seen.mean, expected.mean, rtol=1e-12)
    np.testing.assert_allclose(seen.var, expected.var, rtol=1e-12)
    assert seen.count == expected.count == 4 + own + other


def test_a_members_scale_divides_its_rewards_of_all_ranks() -> None:
    agents, step = [SimpleNamespace(gamma=0.5, _reward_statistics=None)], 3
    rewards = np.random.default_rng(1).normal(size=(step, 2))  # a lane on each rank
    whole, lane = RewardScale(agents, 2), np.ones(2, bool)
    sums, said = np.zeros(1), []
    for reward in rewards:
        batch: Any = SimpleNamespace(mask=lane, terminated=~lane, truncated=~lane, team=None)
        whole.see(reward, batch)
        sums = 0.5 * sums + reward[1:]
        said.append(np.array([[sums.mean()], [sums.var()], [1.0]]))
    half = RewardScale(agents, 1, ranks=Beside(*said))
    for reward in rewards:
        half.see(reward[:1], SimpleNamespace(mask=lane[:1], terminated=~lane[:1], truncated=~lane[:1], team=None))  # type: ignore[arg-type]
    assert half.factors.tolist() == pytest.approx(whole.factors.tolist(), rel=1e-12)


# -- minibatches ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counts", "size"), [((12, 12), 8), ((12, 9), 8), ((1, 3), 1), ((5, 1), 4), ((30, 17, 2), 7)])
def test_ranks_share_minibatches_so_that_their_mean_weighs_every_sample_alike(
    counts: tuple[int, ...], size: int
) -> None:
    counted = np.array(counts)[:, None]
    plans = [
        plan_epoch([np.random.default_rng(rank)], [np.arange(own)], [size], [True], counted, rank)
        for rank, own in enumerate(counts)
    ]
    minibatches = -(-sum(counts) // size)
    assert {len(plan.rows) for plan in plans} == {minibatches}
    for plan, own in zip(plans, counts, strict=True):
        assert sorted(plan.rows[plan.weight > 0].tolist()) == list(range(own))  # every sample once
        assert plan.live.all()
    together = []
    for k in range(minibatches):
        weights = np.concatenate([plan.weight[k].ravel() for plan in plans])
        used = weights[weights > 0]
        assert np.ptp(used) == 0
        assert used.sum() / len(counts) == pytest.approx(1)
        together.append(len(used))
    assert max(together) <= size
    assert max(together) - min(together) <= 1


def test_who_has_stopped_has_no_minibatch_and_draws_nothing() -> None:
    rngs = [np.random.default_rng(0), np.random.default_rng(1)]
    plan = plan_epoch(rngs, [np.arange(6)] * 2, [4, 4], [True, False], np.full((2, 2), 6))
    assert plan.live.tolist() == [[True, False]] * 3
    assert not plan.weight[:, 1].any()
    assert rngs[1].integers(100) == np.random.default_rng(1).integers(100)


class Halved(Ranks):
    """Two ranks, each minibatch on one of them; each sequence has two steps."""

    size = 2

    def average(self, values: Any) -> np.ndarray:
        return np.full(np.shape(values), 2 / self.size)


def test_a_rank_without_a_sequence_in_a_minibatch_adds_nothing_and_the_others_count_for_it() -> None:
    counted, found = np.array([[1], [3]]), []  # sequences of each rank; four minibatches of one
    for rank, (own,) in enumerate(counted):
        sequences, zeros = np.array([[0, 2 * i, 2] for i in range(own)]), torch.zeros(1, 6, 4)
        hidden = {"actor_h": torch.zeros(1, 6, 1, 3)}
        rollout = SequenceRollout(zeros, zeros[..., 0], zeros, None, [np.arange(own)], [sequences], 1, hidden)
        plan = plan_epoch([np.random.default_rng(rank)], rollout.samples, [1], [True], counted, rank)
        found.append([float(batch.weight.sum()) for batch in rollout.batches(plan, ranks=Halved())])
    assert found == [[2, 0, 0, 0], [0, 2, 2, 2]]  # the mean over ranks is 1 in each


# -- launching --------------------------------------------------------------------------------------------------------


def accelerator(processes: int) -> Any:
    return SimpleNamespace(num_processes=processes)


@pytest.mark.parametrize("alone", [None, accelerator(1)], ids=["none", "one process"])
def test_one_process_is_alone_and_nothing_is_said(alone: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_launch(alone)
    with joined(alone) as found:
        assert found is ONE


def test_a_run_with_an_accelerator_of_one_process_is_the_run_without_to_the_bit() -> None:
    found = []
    for given in (None, accelerator(1)):
        env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=False)
        spaces = env.single_observation_space, env.single_action_space
        agents = [DQN(*spaces, i, batch_size=8, learn_step=4, seed=i) for i in range(2)]
        chosen, mutated = TournamentSelection(2, True, 2, seed=1), Mutations(0, 1, 0, 1, 0, 0, rand_seed=1)
        agents, history = train_off_policy(
            env, "CartPole-v1", pop=agents, memory=ReplayBuffer(100), max_steps=96, evo_steps=48, seed=5, verbose=False,
            accelerator=given, tournament=chosen, mutation=mutated,
        )  # fmt: skip
        found.append((digest(agents), history))
    assert found[0] == found[1]


def test_processes_that_no_group_joins_are_refused() -> None:
    said = r"has 2 processes, which train together over torch\.distributed only"
    with pytest.raises(NotAvailableYetError, match=said), joined(accelerator(2)):
        pass


@pytest.mark.parametrize("name", ranks._SIZES)
def test_fewer_processes_than_the_launcher_was_asked_for_are_warned_of(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "2")
    with pytest.warns(AgileRLWarning, match=rf"{name} says 2 processes, and 1 runs: .* fix: .* --nproc_per_node 2"):
        check_launch(accelerator(1))
    errors._warned.clear()
    with pytest.warns(AgileRLWarning, match=r"each of them trains a population of its own.*fix: accelerator=Accel"):
        check_launch(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_launch(accelerator(2))


def test_a_run_by_manifest_warns_of_processes_that_train_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.warns(AgileRLWarning, match=r"WORLD_SIZE says 2 processes, and agilerl\.train runs in one: .* fix: "):
        agilerl.train("CartPole-v1", "DQN", population=1, steps=64, evo_steps=64, out=None, verbose=False)
    errors._warned.clear()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error", AgileRLWarning)
        check_alone()


PYTHON = ["/usr/bin/python", "/usr/bin/accelerate", "launch", "--cpu"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*PYTHON, "--num_processes", "2", "train.py"], 2),
        ([*PYTHON, "--num-processes=3", "train.py"], 3),
        ([*PYTHON, "train.py"], None),
        (["/usr/bin/bash", "--num_processes", "2"], None),
        (["python", "launch", "--num_processes", "2"], None),
    ],
)
def test_the_command_line_of_accelerate_says_how_many_were_asked_for(words: list[str], said: int | None) -> None:
    found = ranks._said_by(words)
    assert found is None if said is None else found == (said, "accelerate launch --num_processes")


def test_the_process_that_started_this_one_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "\0".join([*PYTHON, "--num_processes", "2", "train.py", ""]).encode()
    monkeypatch.setattr(ranks.Path, "read_bytes", lambda path: line)
    assert asked_for() == (2, "accelerate launch --num_processes")
    monkeypatch.setattr(ranks.Path, "read_bytes", lambda path: next(_no_such_file()))
    assert asked_for() is None


def _no_such_file() -> Iterator[bytes]:
    raise OSError
    yield b""


@pytest.mark.parametrize("given", ["0", "-3", "soon", "inf", "nan"])
def test_a_timeout_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("AGILERL_RANKS_TIMEOUT", given)
    with pytest.raises(ConfigError, match="must be seconds above 0"):
        ranks._timeout()
