"""A member that diverges touches nobody: not in a fused update, not through replay, priorities or selection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from agilerl.algorithms import DDPG, DQN, QRDQN, SAC, TD3, TQC, RainbowDQN
from agilerl.collect.divergence import is_finite
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.core.options import OffPolicyOptions
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import ConfigError, ReplayError
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.runs.request import RunRequest
from agilerl.telemetry.record import BaseSink, GenerationRecord
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.quarantine import DivergedError

OBS = gymnasium.spaces.Box(-np.inf, np.inf, (5,), np.float32)
BOX, CHOICE = gymnasium.spaces.Box(-1, 1, (2,), np.float32), gymnasium.spaces.Discrete(3)
NET = {"latent_dim": 12, "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}}
MAKERS: dict[str, Callable[[int], Any]] = {
    "DQN": lambda i: DQN(OBS, CHOICE, index=i, net_config=NET, seed=i),
    "double DQN": lambda i: DQN(OBS, CHOICE, index=i, net_config=NET, seed=i, double=True),
    "RainbowDQN": lambda i: RainbowDQN(OBS, CHOICE, index=i, net_config=NET, seed=i, num_atoms=7),
    "QRDQN": lambda i: QRDQN(OBS, CHOICE, index=i, net_config=NET, seed=i, num_quantiles=7),
    "DDPG": lambda i: DDPG(OBS, BOX, index=i, net_config=NET, seed=i),
    "TD3": lambda i: TD3(OBS, BOX, index=i, net_config=NET, seed=i),
    "SAC": lambda i: SAC(OBS, BOX, index=i, net_config=NET, seed=i),
    "TQC": lambda i: TQC(OBS, BOX, index=i, net_config=NET, seed=i, num_quantiles=7),
    "discrete SAC": lambda i: SAC(OBS, CHOICE, index=i, net_config=NET, seed=i),
}


def poison(agent: Any, value: float = math.nan) -> None:
    """One weight of the policy's first layer, as an overflow leaves it."""
    with torch.no_grad():
        next(agent.policy_module().parameters()).view(-1)[3] = value


def batch_for(agents: list[Any], size: int = 8) -> TransitionBatch:
    g, n = torch.Generator().manual_seed(3), len(agents)
    draw = lambda *shape: torch.randn(*shape, generator=g)  # noqa: E731
    discrete = isinstance(agents[0].action_space, gymnasium.spaces.Discrete)
    action = torch.randint(3, (n, size), generator=g) if discrete else draw(n, size, 2).tanh()
    rng = np.random.default_rng(5)
    noise = {
        k: np.stack([a.draw_noise(rng, (1, size))[k][0] for a in agents]) for k in agents[0].draw_noise(rng, (1, size))
    }
    return TransitionBatch(
        draw(n, size, 5), action, draw(n, size), draw(n, size, 5), (torch.rand(n, size, generator=g) < 0.3).float(),
        torch.full((n, size), 1 / size), noise={k: torch.from_numpy(v).float() for k, v in noise.items()}, number=2,
    )  # fmt: skip


def bits(agent: Any) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = {}
    for name in sorted(agent.registry.all_registered()):
        state |= {f"{name}.{k}": v.clone() for k, v in getattr(agent, name).state_dict().items()}
    for config in agent.registry.optimizers:
        for key, values in getattr(agent, config.name).state_dict()["state"].items():
            state |= {f"{config.name}.{key}.{k}": torch.as_tensor(v).clone() for k, v in values.items()}
    return state


@pytest.mark.parametrize(
    "value", [math.nan, *(pytest.param(sign * math.inf, marks=pytest.mark.slow) for sign in (1, -1))]
)
@pytest.mark.parametrize("kind", MAKERS)
def test_a_poisoned_row_changes_no_bit_of_the_others(kind: str, value: float) -> None:
    outcomes = []
    for poisoned in (False, True):
        agents = [MAKERS[kind](i) for i in range(4)]
        if poisoned:
            poison(agents[1], value)
        batch = batch_for(agents)
        if poisoned:  # its batch may be anything, too
            batch = replace(batch, reward=batch.reward.clone())
            batch.reward[1, 0] = math.nan
        learner = Learner(agents, choose(agents, "fused"))
        assert len(learner.groups) == 1, "all four in one pass"
        for number in (1, 2, 3):
            learner.learn(0, replace(batch, number=number))
        sound = learner.is_finite()
        learner.release()
        outcomes.append([bits(agent) for agent in agents])
        np.testing.assert_array_equal(sound, [True, not poisoned, True, True])
    clean, dirty = outcomes
    for member in (0, 2, 3):
        for name, before in clean[member].items():
            assert torch.equal(before, dirty[member][name]), f"member {member}: {name}"
    assert any(not values.isfinite().all() for values in dirty[1].values())


# -- in the loop --------------------------------------------------------------------------------------------------


class Steady(gymnasium.Env[np.ndarray, Any]):
    """Episodes of 10 steps; refuses actions that are no numbers."""

    observation_space = gymnasium.spaces.Box(-1, 1, (5,), np.float32)

    def __init__(self, action_space: Any) -> None:
        self.action_space, self.time = action_space, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def _obs(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 5).astype(np.float32)

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert np.isfinite(action).all(), "a diverged member has acted"
        self.time += 1
        return self._obs(), float(np.sum(action)), self.time >= 10, False, {}


class Recorder(BaseSink):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.records: list[GenerationRecord] = []

    def message(self, text: str) -> None:
        self.lines.append(text)

    def generation(self, record: GenerationRecord) -> None:
        self.records.append(record)


class PoisonAt(OffPolicyCollector):
    """Poisons members in the middle of a generation, through the learner's rows, as a diverging update does."""

    def __init__(
        self, env: Any, memory: Any, options: OffPolicyOptions, members: list[int], generation: int, step: int
    ) -> None:
        super().__init__(env, memory, options)
        self.members, self.when, self.step = members, generation, step
        self.stored_after: list[int] = []

    def run(self, shard: Any, lanes: Any, learner: Any) -> Any:
        if shard.number == self.when:
            inner, count = lanes, [0]

            class Lanes:
                def __getattr__(self, name: str) -> Any:
                    return getattr(inner, name)

                def step(lanes, actions: Any, active: Any = None) -> Any:
                    batch = inner.step(actions, active)
                    count[0] += 1
                    if count[0] == self.step:
                        for slot, agent in zip(shard.slots, shard.agents, strict=True):
                            if slot in self.members:
                                poison(agent)
                    elif count[0] > self.step:
                        self.stored_after.append(int(batch.mask.sum()))
                    return batch

            lanes = Lanes()
        return super().run(shard, lanes, learner)


def loop_of(
    kind: str,
    memory: Any,
    members: list[int],
    *,
    generation: int = 1,
    step: int = 4,
    evolve: bool = False,
    **options: Any,
) -> tuple[TrainingLoop, Recorder, PoisonAt]:
    agents = [MAKERS[kind](i) for i in range(3)]
    for agent in agents:
        agent.batch_size, agent.learn_step = 8, 2
    env = make_vect_envs(num_envs=2, make_env=lambda: Steady(agents[0].action_space))
    chosen = OffPolicyOptions(max_steps=60, evo_steps=20, eval_episodes=2, **options)
    source, sink = PoisonAt(env, memory, chosen, members, generation, step), Recorder()
    evolution: dict[str, Any] = {}
    if evolve:
        mutation = Mutations(1.0, 0, 0, 0, 0, 0, rand_seed=1)
        evolution = {"evolution": TournamentEvolution(TournamentSelection(2, True, 3, seed=1), mutation)}
    return (
        TrainingLoop(agents, source, chosen, LoopSettings(seed=5, request=RunRequest(sinks=[sink]), **evolution)),
        sink,
        source,
    )


@pytest.mark.parametrize("learner", ["fused", pytest.param("sequential", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", MAKERS)
def test_a_member_that_diverges_acts_no_more_and_is_replaced(kind: str, learner: str) -> None:
    memory = ReplayBuffer(1000)
    loop, sink, source = loop_of(kind, memory, [1], learner=learner)
    result = loop.run()
    assert source.stored_after == [4] * 6  # two lanes of each of the other two members, from the next step on
    assert len(memory) == 3 * 60 - 6 * 2
    for values in memory.gather(np.arange(len(memory))).values():
        assert values.double().isfinite().all()
    assert result.history[1][1] == -math.inf
    assert all(math.isfinite(f) for generation in (0, 2) for f in result.history[generation])
    (healed,) = [birth for birth in result.births if birth.kind == "healed"]
    elite = int(np.argmax(result.history[1]))
    assert (healed.parent, healed.generation, healed.path) == (elite, 2, "member 1")
    assert "not finite" in healed.after
    assert (result.quarantined, result.restarts) == (1, 0)
    assert healed in sink.records[1].births
    (line,) = [line for line in sink.lines if "has diverged" in line]
    assert line.startswith("member 1 has diverged (its ")
    assert all(is_finite(agent) for agent in result.population)
    assert result.population[1].index == healed.id
    assert all(math.isfinite(f) for agent in result.population for f in agent.fitness)


@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_evolution_never_selects_a_diverged_member(learner: str) -> None:
    loop, sink, _ = loop_of("DQN", ReplayBuffer(1000), [0, 2], evolve=True, learner=learner)
    result = loop.run()
    assert [birth.kind for birth in sink.records[1].births][:2] == ["healed", "healed"]
    assert result.quarantined == 2
    assert all(is_finite(agent) for agent in result.population)
    assert all(math.isfinite(f) for agent in result.population for f in agent.fitness)
    assert math.isfinite(result.best.fitness[-1])


@pytest.mark.parametrize("make", [PrioritizedReplayBuffer, PrioritizedMultiStepReplayBuffer])
@pytest.mark.parametrize("kind", ["DQN", "RainbowDQN"])
def test_priorities_stay_finite(kind: str, make: Any) -> None:
    memory = make(1000)
    loop, _, _ = loop_of(kind, memory, [2])
    result = loop.run()
    assert all(is_finite(agent) for agent in result.population)
    assert math.isfinite(memory.max_priority)
    assert np.isfinite(memory.weights(np.arange(len(memory)), 1.0)).all()


def test_a_divergence_at_the_last_update_of_a_generation_is_found_at_the_boundary() -> None:
    loop, sink, _ = loop_of("TD3", ReplayBuffer(1000), [1], step=10, learning_delay=10_000)
    result = loop.run()
    assert result.history[1][1] == -math.inf
    assert [birth.kind for birth in sink.records[1].births] == ["healed"]


def test_a_loss_that_overflows_is_found_with_its_vector_step() -> None:
    """Finite weights can give a loss that is not: 1e30 squared is too large for float32."""
    loop, sink, _ = loop_of("DQN", ReplayBuffer(1000), [])
    for p in loop.population[0].actor.parameters():
        p.data.mul_(1e12)
    loop.run()
    (line,) = [line for line in sink.lines if "has diverged" in line]
    assert "member 0" in line


@pytest.mark.parametrize("evolve", [False, True])
def test_if_all_have_diverged_the_run_stops_and_says_so(evolve: bool) -> None:
    memory = ReplayBuffer(1000)
    loop, _, _ = loop_of("SAC", memory, [0, 1, 2], evolve=evolve)
    with pytest.raises(DivergedError, match=r"every member that trains has diverged \(member \d: .*fix:"):
        loop.run()
    assert len(memory) == 3 * 20 + 4 * 3 * 2  # a generation, and four vector steps of the second


def test_members_that_train_one_after_another_may_all_but_one_diverge() -> None:
    loop, sink, _ = loop_of("DQN", ReplayBuffer(1000), [0, 1], lockstep=False)
    result = loop.run()
    assert [f == -math.inf for f in result.history[1]] == [True, True, False]
    assert [birth.kind for birth in sink.records[1].births] == ["healed", "healed"]


# -- agents with a learn() of their own ---------------------------------------------------------------------------


class Own:
    """A duck-typed agent whose loss is what it is told."""

    def __init__(self, index: int, losses: list[float]) -> None:
        self.index, self.losses, self.batch_size, self.learn_step, self.algo = index, losses, 4, 1, "Own"
        self.steps, self.fitness, self.scores = [0], list[float](), list[float]()
        self.mut: Any = None

    def get_action(self, obs: Any) -> np.ndarray:
        return np.full((len(obs), 2), math.nan if self.losses == [-1.0] else 0.5, np.float32)

    def learn(self, experiences: Any) -> float:
        return self.losses[0]

    def test(self, env: Any, **kwargs: Any) -> float:
        self.fitness.append(1.0 + self.index)
        return self.fitness[-1]

    def clone(self, index: int | None = None) -> Own:
        twin = Own(self.index if index is None else index, self.losses)
        twin.steps, twin.fitness = list(self.steps), list(self.fitness)
        return twin


@pytest.mark.parametrize("losses", [[math.nan], [-1.0]])
def test_an_agent_with_its_own_learn_is_replaced_as_well(losses: list[float]) -> None:
    memory = ReplayBuffer(1000)
    options = OffPolicyOptions(max_steps=40, evo_steps=20, eval_episodes=2)
    env = make_vect_envs(num_envs=2, make_env=lambda: Steady(BOX))
    sink = Recorder()
    agents = [Own(0, [0.1]), Own(1, losses)]
    loop = TrainingLoop(
        agents,
        OffPolicyCollector(env, memory, options),
        options,
        LoopSettings(seed=5, request=RunRequest(sinks=[sink])),
    )
    result = loop.run()
    assert result.history[0] == [1.0, -math.inf]
    assert result.population[1].losses == [0.1]
    assert [birth.kind for birth in result.births] == ["founder", "founder", "healed"]
    assert memory.gather(np.arange(len(memory)))["action"].isfinite().all()


# -- the memories themselves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ReplayBuffer, PrioritizedReplayBuffer, lambda n: MultiStepReplayBuffer(n, n_step=2)])
@pytest.mark.parametrize("field", ["obs", "action", "reward", "next_obs"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_memory_takes_numbers_that_are_none(make: Any, field: str, value: float) -> None:
    memory = make(10)
    rows: dict[str, Any] = {"obs": np.zeros((3, 2)), "action": np.zeros((3, 1)), "reward": np.zeros(3),
                            "next_obs": np.zeros((3, 2)), "done": np.zeros(3)}  # fmt: skip
    memory.write(**rows)
    before = memory.counter
    rows[field] = rows[field].copy()
    rows[field].reshape(3, -1)[1, 0] = value
    with pytest.raises(ReplayError, match=rf"field '{field}' must hold finite numbers .*row 1 of 3.*fix:"):
        memory.write(**rows)
    with pytest.raises(ReplayError, match=r"nothing was added"):
        memory.add(rows)
    assert memory.counter == before


def test_a_number_that_only_float64_can_hold_is_refused_by_a_float32_memory() -> None:
    rows = {"obs": np.full((1, 2), 1e39), "action": np.zeros((1, 1)), "reward": np.zeros(1),
            "next_obs": np.zeros((1, 2)), "done": np.zeros(1)}  # fmt: skip
    with pytest.raises(ReplayError, match="finite numbers"):
        ReplayBuffer(10).write(**rows)
    assert ReplayBuffer(10, dtype=torch.float64).write(**rows) == 1
    assert ReplayBuffer(10).write(**{**rows, "obs": np.full((1, 2), 3e38)}) == 1


def test_update_priorities_still_raises_for_users() -> None:
    memory = PrioritizedReplayBuffer(10)
    memory.write(np.zeros((3, 2)), np.zeros((3, 1)), np.zeros(3), np.zeros((3, 2)), np.zeros(3))
    with pytest.raises(ConfigError, match="priorities must be finite"):
        memory.update_priorities(np.arange(3), np.array([1.0, math.nan, 1.0]))
