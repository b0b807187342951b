"""How often a vector step waits for its device: once for the actions; weights and losses are read every k steps.

On the CPU nothing waits, so the reads are counted where they are written: `Reads` sees every call that would copy a
tensor to the host or ask for a number of it. The check interval is set to what it is on an accelerator.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.overrides import TorchFunctionMode

from agilerl.algorithms import find_algorithm
from agilerl.collect import off_policy
from agilerl.collect.collector import Tally
from agilerl.collect.divergence import CHECK_INTERVAL, Watch, check_interval
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import PrioritizedReplayBuffer, ReplayBuffer
from agilerl.core.options import OffPolicyOptions
from agilerl.core.transfer import to_device
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.rows.kernels import TORCH
from agilerl.envs.vector import make_vect_envs
from agilerl.ranks import ONE
from agilerl.training.dispatch import Dispatcher
from agilerl.training.scheduling import Scheduler
from agilerl.workers.executor import NoWorkers

STEPS, LANES = 64, 4
OBS = spaces.Box(-1, 1, (4,))
NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


class Reads(TorchFunctionMode):
    """Counts what waits for an accelerator: numbers and truth values of tensors, copies to the host, `nonzero`."""

    WAITS = (
        "cpu", "item", "tolist", "__bool__", "__float__", "__int__", "__index__", "__array__", "nonzero", "argwhere",
        "masked_select", "equal", "unique",
    )  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.__name__
        to_host = name == "to" and any(x in ("cpu", torch.device("cpu")) for x in args[1:] if isinstance(x, str))
        by_mask = name in ("__getitem__", "__setitem__") and isinstance(args[1], Tensor) and args[1].dtype == torch.bool
        if name in self.WAITS or to_host or by_mask:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def generation(algo: str, memory: Any, steps: int, mode: Any = None, **more: Any) -> tuple[list[Any], list[Tally]]:
    """A generation of three members that learn from the first steps on; the agents, and what is recorded of each."""
    env = make_vect_envs("Pendulum-v1" if algo in ("DDPG", "TD3", "SAC") else "CartPole-v1", LANES)
    cls: Any = find_algorithm(algo)
    space, actions = env.single_observation_space, env.single_action_space
    agents = cls.population(3, space, actions, seed=1, net_config=NET, batch_size=16, learn_step=2, **more)
    options = OffPolicyOptions(max_steps=100_000, evo_steps=LANES * steps, learning_delay=16, eval_episodes=1)
    source = OffPolicyCollector(env, memory, options)
    source.kernels = TORCH
    source.open(agents, 3)
    made = Dispatcher(source, Scheduler(NoWorkers(), 0, print)).generation(agents, 0, 0)
    with mode or contextlib.nullcontext():
        while True:
            try:
                next(made)
            except StopIteration as end:
                source.close()
                return agents, end.value


@pytest.fixture
def accelerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks are as seldom as on an accelerator."""
    monkeypatch.setattr(off_policy, "check_interval", lambda device: check_interval(torch.device("cuda")))


def reads_per_step(algo: str, memory: Callable[[], Any]) -> dict[str, float]:
    """Reads per vector step, from generations of STEPS and of twice as many: those of the generation itself cancel."""
    counts = []
    for steps in (STEPS, 2 * STEPS):
        reads = Reads()
        generation(algo, memory(), steps, reads)
        counts.append(reads.counts)
    return {
        name: (counts[1][name] - counts[0][name]) / STEPS for name in counts[1] if counts[1][name] != counts[0][name]
    }


@pytest.mark.usefixtures("accelerated")
@pytest.mark.parametrize("algo", ["DQN", "RainbowDQN", "DDPG", "TD3", "SAC"])
def test_a_vector_step_waits_for_its_actions_and_every_k_steps_for_checks(algo: str) -> None:
    assert reads_per_step(algo, lambda: ReplayBuffer(1000)) == {"cpu": 1 + 1 / CHECK_INTERVAL}


@pytest.mark.usefixtures("accelerated")
def test_priorities_are_read_once_more() -> None:
    assert reads_per_step("DQN", lambda: PrioritizedReplayBuffer(1000)) == {"cpu": 2 + 1 / CHECK_INTERVAL}


def test_on_the_cpu_every_step_is_checked() -> None:
    assert check_interval(torch.device("cpu")) == 1
    assert reads_per_step("DQN", lambda: ReplayBuffer(1000)) == {"cpu": 1.0, "__float__": 2.0}


@pytest.mark.usefixtures("accelerated")
def test_what_is_checked_less_often_learns_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seldom, _ = generation("DQN", ReplayBuffer(1000), STEPS)
    monkeypatch.setattr(off_policy, "check_interval", lambda device: 1)
    often, _ = generation("DQN", ReplayBuffer(1000), STEPS)
    for one, other in zip(seldom, often, strict=True):
        for a, b in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
            assert a.equal(b)


# -- a member that diverges ----------------------------------------------------------------------------------------


class Group:
    """Members of a learner whose weights are finite as told."""

    def __init__(self, members: list[int]) -> None:
        self.members, self.flags = members, torch.ones(len(members), dtype=torch.bool)

    def finite_flags(self) -> Tensor:
        return self.flags


class Told:
    """A learner of two groups, in an order other than that of the population."""

    def __init__(self) -> None:
        self.groups, self.ranks = [Group([2, 0]), Group([1])], ONE


def watched(interval: int = 4) -> tuple[Told, Watch]:
    learner: Any = Told()
    return learner, Watch(learner, [Tally() for _ in range(3)], 2, interval)


def test_weights_are_checked_at_the_first_step_and_every_interval_steps() -> None:
    learner, watch = watched()
    watch.weights()
    learner.groups[0].flags = torch.tensor([True, False])
    for _ in range(3):
        watch.weights()
        assert watch.is_finite.all()
    watch.weights()
    np.testing.assert_array_equal(watch.is_finite, [False, True, True])
    np.testing.assert_array_equal(watch.lanes, [False, False, True, True, True, True])
    assert watch.tallies[0].fault == "its weights are not finite"
    assert watch.any_sound
    assert not watch.all_sound


def test_losses_are_checked_with_the_weights_and_come_first() -> None:
    learner, watch = watched()
    watch.weights()
    watch.losses([2, 0], torch.tensor([float("nan"), 1.0]))
    learner.groups[0].flags = torch.tensor([False, True])
    for _ in range(4):
        watch.weights()
    np.testing.assert_array_equal(watch.is_finite, [True, True, False])
    assert watch.tallies[2].fault == "its loss is not finite"


def test_the_losses_of_the_last_steps_are_checked_when_the_generation_ends() -> None:
    _, watch = watched()
    watch.weights()
    watch.losses([1], torch.tensor([float("inf")]))
    watch.losses([2, 0], torch.tensor([0.0, 1.0]))
    assert watch.is_finite.all()
    watch.finish()
    np.testing.assert_array_equal(watch.is_finite, [True, False, True])
    watch.finish()  # nothing is left
    assert watch.tallies[1].fault == "its loss is not finite"


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_flags_of_the_device_are_those_of_the_host(learner: Any) -> None:
    agents = find_algorithm("DQN").population(3, OBS, spaces.Discrete(2), seed=1, net_config=NET)
    with torch.no_grad():
        next(agents[1].actor.parameters())[0, 0] = float("nan")
    adopted = Learner(agents, choose(agents, learner))
    flags = np.concatenate([group.finite_flags().numpy() for group in adopted.groups])
    np.testing.assert_array_equal(flags, [True, False, True])
    np.testing.assert_array_equal(flags, adopted.is_finite())


def test_rows_on_a_device_are_gathered_there() -> None:
    memory = ReplayBuffer(8, device="meta")
    obs, over = np.zeros((4, 3), np.float32), np.zeros(4, bool)
    for _ in range(3):
        memory.write(obs, np.zeros(4, np.int64), np.zeros(4), obs, over)
    rows = memory.gather(np.zeros((2, 5), np.int64))
    assert {name: (value.device.type, tuple(value.shape)) for name, value in rows.items()} == {
        "obs": ("meta", (2, 5, 3)), "next_obs": ("meta", (2, 5, 3)), "action": ("meta", (2, 5)),
        "reward": ("meta", (2, 5)), "done": ("meta", (2, 5)),
    }  # fmt: skip


# -- copies --------------------------------------------------------------------------------------------------------


class OnHost:
    """A tensor that notes how it is moved; there is no GPU to move it to."""

    device, dtype = torch.device("cpu"), torch.float64

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def pin_memory(self) -> OnHost:
        self.calls.append("pinned")
        return self

    def to(self, *args: Any, **kwargs: Any) -> OnHost:
        self.calls.append((*args, *kwargs.items()))
        return self


def test_copies_to_cuda_are_converted_pinned_and_not_waited_for() -> None:
    cuda, values = torch.device("cuda"), OnHost()
    to_device(values, cuda, torch.float32)  # type: ignore[arg-type]
    assert values.calls == [(torch.float32,), "pinned", (cuda, ("non_blocking", True))]


def test_other_copies_are_plain() -> None:
    values = torch.arange(3.0, dtype=torch.float64)
    assert to_device(values, torch.device("cpu")) is values
    assert to_device(values, torch.device("cpu"), torch.float32).dtype == torch.float32
    assert to_device(values, torch.device("meta"), torch.float32).device.type == "meta"
