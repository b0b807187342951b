"""Check once, at the start of a run, whether an environment is deterministic given a seed and actions."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector.utils import batch_space

from agilerl.core import foreign
from agilerl.core import tree as trees
from agilerl.core.rng import Purpose, seeds, stream
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.protocol import Lanes

if TYPE_CHECKING:
    from agilerl.algorithms.base.agent import EvolvableAlgorithm

VECTOR_STEPS = 100
LARGEST_SHARE = 0.01  # maximum share of the run's environment steps, for both copies


@dataclass(frozen=True)
class Probe:
    """Result of the determinism check.

    Attributes:
        is_deterministic: None if the check was skipped. difference: what differed between the two copies, and when.
    """

    is_deterministic: bool | None
    difference: str = ""


def probe_determinism(env: Any, agent: Any, seed: int, budget: int, check: Callable[[], None] | None = None) -> Probe:
    """Step two copies of `env` with the same seeds and random actions, and compare all outputs.

    An environment that draws only from its own generators, as Gymnasium requires, is bit-identical. Dependence on time,
    the network or a generator shared by all copies is detected if it shows within 100 vector steps.

    Args:
        env: result of `make_vect_envs`; any other environment is skipped.
        agent: draws the random actions. seed: run seed.
        budget: environment steps of the run, over all members. The check is skipped if it would take more than 1 % of
            them.
        check: called between vector steps.
    """
    replicate = foreign.method(env, "replicate")
    if replicate is None or 2 * VECTOR_STEPS * env.num_envs > LARGEST_SHARE * budget:
        return Probe(None)
    copies = (contextlib.closing(follow_masks(replicate(1))) for _ in range(2))
    with next(copies) as one, next(copies) as other:
        return _compare(one, other, _Actions(agent, one, seed), seed, check or (lambda: None))


def warning_of(probe: Probe, env_id: str) -> str | None:
    """Warning text, or None if no difference was found."""
    if probe.is_deterministic is not False:
        return None
    which = f": two copies with the same seed and actions differ in {probe.difference}" if probe.difference else ""
    return (
        f"{env_id or 'the environment'} is not deterministic{which}. A resumed run will not equal one that never "
        "stopped. fix: draw from self.np_random alone, which reset(seed=...) seeds."
    )


def _compare(one: Lanes, other: Lanes, actions: _Actions, seed: int, check: Callable[[], None]) -> Probe:
    start = seeds(seed, Purpose.DETERMINISM, one.num_lanes)
    (obs, info), (other_obs, other_info) = one.reset(start), other.reset(start)
    if not (_equal(obs, other_obs) and _equal_masks(info, other_info)):
        return Probe(False, "the observations after reset(seed)")
    for step in range(1, VECTOR_STEPS + 1):
        check()
        action = actions.draw(info)
        first, second = one.step(action), other.step(action)
        info = first.info
        if first.healed is not None or second.healed is not None:
            return Probe(None, f"an environment had to be replaced at step {step}")
        compared = {
            "ends": _equal((first.terminated, first.truncated), (second.terminated, second.truncated)),
            "rewards": _equal(first.reward, second.reward),
            "observations": _equal((first.obs, first.final_obs), (second.obs, second.final_obs)),
            "masks of legal actions": _equal_masks(info, second.info),
        }
        different = next((name for name, same in compared.items() if not same), None)
        if different is not None:
            return Probe(False, f"the {different} at step {step}")
    return Probe(True)


def _equal(one: Any, other: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(trees.leaves(one), trees.leaves(other), strict=True))


def _equal_masks(one: dict[str, Any], other: dict[str, Any]) -> bool:
    a, b = one.get("action_mask"), other.get("action_mask")
    return a is b is None or (a is not None and b is not None and np.array_equal(a, b))


class _Actions:
    """Uniformly random legal actions for all lanes, from `agent.random_action` or else from the action space."""

    def __init__(self, agent: EvolvableAlgorithm, lanes: Lanes, seed: int) -> None:
        self.agent, self.count = agent, lanes.num_lanes
        self.masks = ActionMasks(lanes.single_action_space, lanes.backend)
        self.rng = stream(seed, Purpose.DETERMINISM)
        self.space = batch_space(copy.deepcopy(lanes.single_action_space), self.count)
        self.space.seed(int(stream(seed, Purpose.DETERMINISM, member=1).integers(2**31)))

    def draw(self, info: dict[str, Any]) -> np.ndarray:
        """Return actions [L, ...] in the environment's format."""
        random_action = foreign.method(self.agent, "random_action")
        if random_action is None:
            sampled: np.ndarray = self.space.sample()
            return sampled
        mask = self.masks.of(info, self.count)
        action = random_action(self.rng, (self.count,), mask)
        convert = foreign.method(self.agent, "environment_action")
        taken: np.ndarray = action if convert is None else convert(action)
        return taken
