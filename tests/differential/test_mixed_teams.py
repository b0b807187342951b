"""Whole runs of teams of every pair of action and observation kinds equal plain references, from the log to weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest
import torch
from mixed_team import ACTED, OBSERVED, Log, MixedTeam
from replay_reference import ReplayReference, Settings, n_step_rows, raw, rows_of, sizes
from rollout_reference import PPOSettings, RolloutReference

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.matd3 import MATD3
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import (
    MultiStepReplayBuffer,
    PrioritizedMultiStepReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
)
from agilerl.engine import rollouts
from agilerl.engine.rollouts import plan_epoch
from agilerl.envs.protocol import AGENTS
from agilerl.errors import AlgorithmError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [8]}, "latent_dim": 8, "head_config": {"hidden_size": [8]}}
LANES, BATCH, UPDATES = 2, 8, 28  # each lane has four episodes at least, with and without absent agents
STEPS, EPOCHS = 16, 2  # of a rollout
ALGORITHMS: dict[str, Any] = {cls.__name__: cls for cls in (MADDPG, MATD3, IPPO, MAPPO)}
OFF_POLICY, ON_POLICY = ("discrete", "multi_discrete", "box"), ("discrete", "multi_discrete", "bits", "box")
Pair = tuple[str, str]

# algorithm, actions of both groups, observations of both groups, whether the first group has two agents, masks:
# every pair of action kinds of every algorithm, and every pair of levels of any two factors
CELLS = [
    "MADDPG discrete,discrete tuple,image apart masks",
    "MADDPG discrete,multi_discrete discrete,image apart masks",
    "MADDPG box,discrete multi_discrete,box apart masks",
    "MADDPG multi_discrete,multi_discrete discrete,discrete apart masks",
    "MADDPG box,multi_discrete dict,bits grouped masks",
    "MADDPG box,box image,box grouped free",
    "MATD3 discrete,discrete tuple,tuple grouped masks",
    "MATD3 multi_discrete,discrete discrete,box grouped free",
    "MATD3 box,discrete tuple,multi_discrete grouped free",
    "MATD3 multi_discrete,multi_discrete dict,discrete apart masks",
    "MATD3 multi_discrete,box bits,image grouped masks",
    "MATD3 box,box multi_discrete,box apart masks",
    "IPPO discrete,discrete bits,dict apart masks",
    "IPPO multi_discrete,discrete dict,tuple grouped free",
    "IPPO bits,discrete discrete,multi_discrete apart free",
    "IPPO box,discrete bits,multi_discrete grouped free",
    "IPPO multi_discrete,multi_discrete box,bits apart masks",
    "IPPO bits,multi_discrete box,dict grouped free",
    "IPPO multi_discrete,box tuple,discrete apart free",
    "IPPO bits,bits box,box apart free",
    "IPPO box,bits image,multi_discrete grouped masks",
    "IPPO box,box tuple,box apart free",
    "MAPPO discrete,discrete box,multi_discrete grouped free",
    "MAPPO multi_discrete,discrete multi_discrete,dict apart free",
    "MAPPO bits,discrete bits,bits apart free",
    "MAPPO discrete,box multi_discrete,tuple apart free",
    "MAPPO multi_discrete,multi_discrete multi_discrete,multi_discrete apart masks",
    "MAPPO bits,multi_discrete image,image apart masks",
    "MAPPO box,multi_discrete discrete,bits apart masks",
    "MAPPO bits,bits dict,dict apart masks",
    "MAPPO box,bits bits,tuple grouped masks",
    "MAPPO box,box dict,image apart free",
]


def parsed(cell: str) -> tuple[str, Pair, Pair, bool, bool]:
    algorithm, actions, seen, groups, masks = cell.split()
    first, second = actions.split(","), seen.split(",")
    return algorithm, (first[0], first[1]), (second[0], second[1]), groups == "grouped", masks == "masks"


def environment(observed: Pair, acted: Pair, grouped: bool, masks: bool) -> tuple[Log, Any, Callable[[], Any]]:
    """(its log, one of it, what makes more of it)."""
    log = Log()
    seen, done = ({"red": kinds[a], "blue": kinds[b]} for kinds, (a, b) in ((OBSERVED, observed), (ACTED, acted)))
    make = partial(MixedTeam, seen, done, log, grouped, masks)
    return log, make(), make


def team_of(cls: Any, env: Any, **hyperparameters: Any) -> Any:
    ids = env.possible_agents
    observed, acted = ({a: space(a) for a in ids} for space in (env.observation_space, env.action_space))
    team = cls(observed, acted, ids, net_config=NET, seed=4, **hyperparameters)
    for name in team.registry.all_registered():
        getattr(team, name).double()
    return team


def assert_same(team: Any, name: str, p: dict[str, torch.Tensor]) -> None:
    for key, value in getattr(team, name).named_parameters():
        torch.testing.assert_close(value, p[key], rtol=1e-9, atol=1e-9, msg=lambda m, k=key: f"{name}.{k}: {m}")


# --- from replay ------------------------------------------------------------------------------------------------------


def logged(cls: Any) -> tuple[Any, list[dict[str, np.ndarray]]]:
    """The algorithm, and what its updates draw of random numbers, update by update."""
    drawn: list[dict[str, np.ndarray]] = []

    class Logged(cls):  # type: ignore[misc]
        def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
            found: dict[str, np.ndarray] = super().draw_noise(rng, shape)
            if shape[-1] == BATCH:
                drawn.extend({name: x[k] for name, x in found.items()} for k in range(shape[0]))
            return found

    return Logged, drawn


def watched(memory: Any) -> Any:
    """The memory, which from now on lists what was drawn of it and what priorities it was given."""
    kind = type(memory)

    class Watched(kind):  # type: ignore[misc, valid-type]
        def sample_indices(self, rng: np.random.Generator, shape: Any) -> np.ndarray:
            found: np.ndarray = super().sample_indices(rng, shape)
            self.sampled.extend(found)
            return found

    class WatchedPriorities(Watched):
        def weights(self, indices: np.ndarray, beta: float) -> np.ndarray:
            found: np.ndarray = super().weights(indices, beta)
            self.importance.extend(found)
            return found

        def update_priorities(self, indices: Any, priorities: Any) -> None:
            self.given.extend(np.asarray(priorities))
            super().update_priorities(indices, priorities)

    memory.__class__ = WatchedPriorities if isinstance(memory, PrioritizedReplayBuffer) else Watched
    memory.sampled, memory.importance, memory.given = [], [], []
    return memory


def run_replay(
    cls: Any, acted: Pair, observed: Pair, grouped: bool, masks: bool, make_memory: Any = None, n: int = 1
) -> None:
    log, first, make = environment(observed, acted, grouped, masks)
    env, algorithm, drawn = SyncPettingZooVecEnv([make] * LANES), *logged(cls)
    settings = Settings(0.9, 0.05, 1e-3, 2e-3, 1 if cls is MADDPG else 2)
    team = team_of(algorithm, first, batch_size=BATCH, learn_step=1, gamma=0.9, tau=0.05, lr_actor=1e-3, lr_critic=2e-3)
    usual = partial(MultiAgentReplayBuffer, 500, agent_ids=first.possible_agents)
    untrained, memory = team.clone(), watched((make_memory or usual)())
    steps, made = 8 + UPDATES // LANES, len(log.lanes)
    train_multi_agent_off_policy(
        env, "mixed", cls.__name__, [team], memory, max_steps=LANES * steps, evo_steps=LANES * steps, eval_steps=2,
        learning_delay=2 * 8, verbose=False, seed=1,
    )  # fmt: skip
    lanes = [own[:steps] for own in log.lanes[made:] if len(own) >= steps]
    assert len(lanes) == LANES
    rows = [row for step in zip(*(rows_of(first, own) for own in lanes), strict=True) for row in step]
    stored = memory.gather(np.arange(len(memory)))
    places = np.arange(len(rows)) if n == 1 else starts_of(stored, rows, first.possible_agents)
    take_raw_actions(rows, places, stored["action"].double().numpy(), first.possible_agents)
    if n > 1:
        each = [n_step_rows(rows[e::LANES], own, n, 0.9) for e, own in enumerate(lanes)]
        rows = [row for step in zip(*each, strict=True) for row in step]
    reference = ReplayReference(first, untrained, rows, settings, cls is MATD3)
    assert len(memory.sampled) == len(drawn) >= UPDATES - 2 * LANES * n
    for k, (indices, noise) in enumerate(zip(memory.sampled, drawn, strict=True)):
        sizes = reference.update(places[indices], noise, memory.importance[k] if memory.importance else None)
        if memory.importance:
            np.testing.assert_allclose(memory.given[k], sizes, rtol=1e-9, atol=1e-9)
    for name, p in reference.networks.items():
        assert_same(team, name, p)


def starts_of(stored: Any, rows: list[Any], ids: list[str]) -> np.ndarray:
    """Which row of the log each stored row begins with, by what agents saw: no two are alike."""
    seen = [stored["obs"][AGENTS][a].numpy() for a in ids]
    known = {b"".join(np.asarray(row.seen[a], np.float32).tobytes() for a in ids): k for k, row in enumerate(rows)}
    assert len(known) == len(rows)
    return np.array([known[b"".join(x[k].astype(np.float32).tobytes() for x in seen)] for k in range(len(seen[0]))])


def take_raw_actions(rows: list[Any], places: np.ndarray, stored: np.ndarray, ids: list[str]) -> None:
    """Take the float32 numbers that policies gave, of which the log has the scaled ones; they are the same actions."""
    for place, action in zip(places, stored, strict=False):
        row, start = rows[place], 0
        for agent in ids:
            own = action[start : start + len(row.action[agent])]
            start += len(own)
            if row.there[agent] or row.waits[agent]:
                np.testing.assert_allclose(own, row.action[agent], atol=1e-6)
                row.action[agent] = own
            if row.next_waits[agent]:
                row.next_held[agent] = own


# --- from rollouts ----------------------------------------------------------------------------------------------------


def no_engine_reason(cls: Any) -> Any:
    """The algorithm with a `learn` of its own, which is called with the published entries."""

    class Own(cls):  # type: ignore[misc]
        def learn(self, experiences: Any) -> Any:
            return super().learn(experiences)

    return Own


def numbers_of(env: Any, steps: list[Any]) -> np.ndarray:
    """[E, A] choices from 0 of the steps of all environments; zeros for who did not act."""
    ids = env.possible_agents
    space = {a: env.action_space(a) for a in ids}
    zeros = {a: np.zeros(len(sizes(space[a]))) for a in ids}
    each = [[raw(space[a], s.actions[a]) if a in s.actions else zeros[a] for a in ids] for s in steps]
    return np.stack([np.concatenate(parts) for parts in each])


def run_rollouts(
    cls: Any, acted: Pair, observed: Pair, grouped: bool, masks: bool, patch: Any, own: bool = False
) -> None:
    first_kind, second_kind = ("open_box" if kind == "box" else kind for kind in acted)
    log, first, make = environment(observed, (first_kind, second_kind), grouped, masks)
    env, stored, plans = SyncPettingZooVecEnv([make] * LANES), list[np.ndarray](), list[list[Any]]()

    class Logged(cls):  # type: ignore[misc]
        def environment_action(self, action: np.ndarray) -> np.ndarray:
            stored.append(np.array(action))
            return super().environment_action(action)  # type: ignore[no-any-return]

    def planned(*args: Any) -> Any:
        found = plan_epoch(*args)
        plans.append([rows[weight > 0] for rows, weight in zip(found.rows[:, 0], found.weight[:, 0], strict=True)])
        return found

    patch.setattr(rollouts, "plan_epoch", planned)
    team = team_of(
        no_engine_reason(cls) if own else Logged,
        first,
        batch_size=11,
        learn_step=LANES * STEPS,
        update_epochs=EPOCHS,
        gamma=0.9,
        gae_lambda=0.8,
        lr=1e-3,
    )
    untrained, made = team.clone(), len(log.lanes)
    count = -(-UPDATES // (EPOCHS * -(-LANES * STEPS // 11)))
    total = LANES * STEPS * count
    train_multi_agent_on_policy(
        env, "mixed", cls.__name__, [team], max_steps=total, evo_steps=total, eval_steps=2, verbose=False, seed=1
    )
    lanes, shown = log.lanes[made:], log.shown[made:]
    training = [k for k, own in enumerate(lanes) if len(own) >= STEPS * count]
    assert len(training) == LANES
    if own:
        stored = [numbers_of(first, [lanes[i][t] for i in training]) for t in range(STEPS * count)]
    reference, done = RolloutReference(first, untrained, PPOSettings(0.9, 0.8, 1e-3), cls is MAPPO), 0
    for k in range(count):
        span = slice(k * STEPS, (k + 1) * STEPS)
        done += reference.learn(
            [lanes[i][span] for i in training], [shown[i][span.stop] for i in training], np.stack(stored[span]),
            plans[k * EPOCHS : (k + 1) * EPOCHS],
        )  # fmt: skip
    assert done >= UPDATES
    for kind, networks in (("actors", reference.actors), ("critics", reference.critics)):
        for group, p in networks.items():
            assert_same(team, f"{kind}.{group}", p)


# --- tests ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_updates_of_a_mixed_team_are_those_of_the_papers(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, *factors = parsed(cell)
    cls = ALGORITHMS[algorithm]
    if cls in (MADDPG, MATD3):
        run_replay(cls, *factors)
    else:
        run_rollouts(cls, *factors, monkeypatch)


@pytest.mark.parametrize("algorithm", ["IPPO", "MAPPO"])
@pytest.mark.parametrize("masks", [True, False])
def test_a_team_with_a_learn_of_its_own_gets_what_rollouts_of_the_package_hold(
    algorithm: str, masks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors: Any = ("multi_discrete", "discrete"), ("box", "discrete"), True, masks
    run_rollouts(ALGORITHMS[algorithm], *factors, monkeypatch, own=True)


MEMORIES: dict[str, tuple[Any, int]] = {
    "uniform": (partial(ReplayBuffer, 500), 1),
    "n-step": (partial(MultiStepReplayBuffer, 500, n_step=3, gamma=0.9, dtype=torch.float64), 3),
    "prioritized": (partial(PrioritizedReplayBuffer, 512), 1),
    "prioritized n-step": (partial(PrioritizedMultiStepReplayBuffer, 512, n_step=2, gamma=0.9, dtype=torch.float64), 2),
}


@pytest.mark.parametrize("algorithm", ["MADDPG", "MATD3"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_memory_teaches_a_mixed_team_what_the_papers_say(algorithm: str, memory: str) -> None:
    make, n = MEMORIES[memory]
    run_replay(ALGORITHMS[algorithm], ("box", "multi_discrete"), ("box", "box"), True, True, make, n)


def test_the_cells_hold_every_pair_of_action_kinds_and_every_pair_of_levels() -> None:
    cells = [parsed(cell) for cell in CELLS]
    for algorithm in ALGORITHMS:
        kinds = OFF_POLICY if algorithm in ("MADDPG", "MATD3") else ON_POLICY
        for pair in combinations_with_replacement(kinds, 2):
            assert any(sorted(c[1]) == sorted(pair) for c in cells if c[0] == algorithm), (algorithm, pair)
        for seen in OBSERVED:
            assert any(seen in c[2] for c in cells if c[0] == algorithm), (algorithm, seen)
        assert {c[3] for c in cells if c[0] == algorithm} == {c[4] for c in cells if c[0] == algorithm} == {True, False}
    for pair in combinations_with_replacement(OBSERVED, 2):
        assert any(sorted(c[2]) == sorted(pair) for c in cells), pair
    for kind, seen in product(ON_POLICY, OBSERVED):
        assert any((kind, seen) in zip(c[1], c[2], strict=True) for c in cells), (kind, seen)
    for place, is_on in product((3, 4), (True, False)):
        chosen = [c for c in cells if c[place] is is_on]
        assert {kind for c in chosen for kind in c[1]} == set(ON_POLICY)
        assert {seen for c in chosen for seen in c[2]} == set(OBSERVED)
    assert {c[3:] for c in cells} == set(product((True, False), repeat=2))


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
@pytest.mark.parametrize("other", OFF_POLICY)
def test_bits_beside_any_other_actions_are_refused_by_name(cls: Any, other: str) -> None:
    env = environment(("box", "box"), (other, "bits"), False, False)[1]
    with pytest.raises(AlgorithmError, match=r"blue_0 takes Discrete, MultiDiscrete and Box actions; .*fix: Multi"):
        team_of(cls, env)
