"""The population as one tensor program: members grouped into cohorts that act and learn in one pass each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.engine.hidden import Group, Memory, masks_of
from agilerl.engine.protocol import Trainable, UpdateResult
from agilerl.engine.rows.cohort import MemberBinding
from agilerl.engine.rows.rows_engine import RowsEngine
from agilerl.engine.sequential import SequentialLearner
from agilerl.errors import ConfigError, unknown_name
from agilerl.tree import map_leaves

__all__ = [
    "FusedLearner",
    "Group",
    "Learner",
    "Memory",
    "RowsGroup",
    "SequentialLearner",
    "choose_learner",
    "unfusable",
]


@dataclass
class RowsGroup(Group):
    """Members that share rows."""

    engine: RowsEngine


class FusedLearner:
    """Adopts a population for one generation; `release` gives every agent its own tensors back.

    Members fall into groups by architecture signature, update options, hyperparameter names and update frequency; a
    group runs as one batched pass. Groups depend on the genomes alone, in population order.
    """

    name = "fused"

    def __init__(self, agents: Sequence[Trainable]) -> None:
        """Adopt `agents`.

        Raises:
            ValueError: an agent does not stack; ask `can_fuse` first.
        """
        self.agents = list(agents)
        by_key: dict[Any, list[int]] = {}
        bindings: list[MemberBinding] = []
        for position, agent in enumerate(self.agents):
            binding = agent.binding()
            if binding is None:
                raise ValueError(f"agent {agent.index} does not stack")
            bindings.append(binding)
            names = tuple(agent.update_hyperparameters())
            policy = agent.policy_network()
            options = (policy.reading(), names, agent.update_interval(), *agent.update_options())
            key = (type(agent), binding.signature(), options)
            by_key.setdefault(key, []).append(position)
        self.groups = [self._make_group(members, bindings) for members in by_key.values()]
        self._memory = Memory(self)
        policies = [self.agents[g.members[0]].registry.policy() for g in self.groups]
        pairs = [(g.engine, str(name)) for g, name in zip(self.groups, policies, strict=True)]
        self._policies = [engine.frozen(name) for engine, name in pairs]
        self._quiet_policies = [engine.frozen(name, noisy=False) for engine, name in pairs]

    def _make_group(self, members: list[int], bindings: list[MemberBinding]) -> RowsGroup:
        lead = self.agents[members[0]]
        rates = {o.name: o.lr for o in lead.registry.optimizers}
        engine = RowsEngine([bindings[i] for i in members], rates, lead.evaluation_networks())
        values = [self.agents[i].update_hyperparameters() for i in members]
        engine.set_hyperparameters({name: [v[name] for v in values] for name in values[0]})
        return RowsGroup(members, lead, engine)

    def learn(self, group: int, batch: Any, live: Sequence[bool] | None = None) -> UpdateResult:
        """One update of every member of a group on its own row of `batch` [N_g, B, ...]; results [N_g, ...].

        Members that are not `live` [N_g] do not move at all; their rows of `batch` must be finite, with weight 0.
        """
        chosen = self.groups[group]
        for row, member in enumerate(chosen.members):
            self.agents[member].learn_counter += 1 if live is None or live[row] else 0
        with chosen.engine.only(live):
            return chosen.lead.update(chosen.engine, batch)

    def values(self, group: int, obs: Any) -> Tensor:
        """State values [N_g, B] of prepared observations, for algorithms that have `state_values`."""
        chosen = self.groups[group]
        lead: Any = chosen.lead
        values: Tensor = lead.state_values(chosen.engine, obs)
        return values

    def recur(self, group: int, obs: Any, hidden: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of a recurrent group, for algorithms that have `recur`.

        Args:
            obs: [N_g, E, ...] as the environment gives them. hidden: key -> [N_g, layers, E, units].

        Returns:
            (raw output [N_g, E, out], values [N_g, E], next hidden states).
        """
        chosen = self.groups[group]
        lead: Any = chosen.lead
        found: tuple[Tensor, Tensor, dict[str, Tensor]] = lead.recur(chosen.engine, self.prepare(group, obs), hidden)
        return found

    def refresh(self) -> None:
        """Read the members' hyperparameters anew."""
        for group in self.groups:
            values = [self.agents[i].update_hyperparameters() for i in group.members]
            group.engine.set_hyperparameters({name: [v[name] for v in values] for name in values[0]})

    def prepare(self, group: int, obs: Any) -> Any:
        """Stored observations (nested for Dict and Tuple spaces) as the rows of a group take them: [..., in]."""
        return self.groups[group].lead.policy_network().preprocess(obs)

    def outputs(self, obs: Any, noisy: bool = False) -> list[tuple[list[int], Tensor]]:
        """Policy outputs for observations [N, E, ...], as (member positions, [N_g, E, out]) per group.

        The observations are nested as the space is. `noisy` keeps the noise of noisy layers, as exploration wants it.
        """
        policies = self._policies if noisy else self._quiet_policies
        with torch.no_grad():
            return [
                (g.members, policy(g.lead.policy_network().preprocess(self._of_group(g, obs))))
                for g, policy in zip(self.groups, policies, strict=True)
            ]

    def outputs_of(self, group: int, obs: Any) -> Tensor:
        """Policy outputs [N_g, E, out] of one group for its own observations [N_g, E, ...]."""
        with torch.no_grad():
            return self._policies[group](self.prepare(group, obs))

    def _of_group(self, group: Group, obs: Any) -> Any:
        """The rows of a group's members."""
        return obs if len(self.groups) == 1 else map_leaves(lambda x: x[group.members], obs)

    def begin_episodes(self) -> None:
        """Every lane that `act_greedy` plays in begins an episode: recurrent policies start anew."""
        self._memory = Memory(self)

    def act_greedy(self, obs: Any, mask: np.ndarray | None = None) -> np.ndarray:
        """Greedy actions of all members for the environment, [N, E, ...]; obs [N, E, ...], mask [N, E, A]."""
        outputs = self._memory.outputs(obs) if self.agents[0].is_recurrent else self.outputs(obs)
        return self._join(
            outputs, lambda lead, x, rows: lead.environment_action(lead.greedy(x, masks_of(lead, mask, rows)))
        )

    def set_policy_noise(self, noise: np.ndarray) -> None:
        """Give the policies' noisy layers [N, S] numbers; a member with fewer than S has them first."""
        for group in self.groups:
            values = torch.from_numpy(noise[group.members]).to(group.engine.device, group.engine.dtype)
            group.engine.set_noise(str(group.lead.registry.policy()), values)

    def explore(
        self, obs: Any, draws: tuple[np.ndarray, ...], epsilon: float, mask: np.ndarray | None = None
    ) -> np.ndarray:
        """Exploring actions to store, [N, E, ...]; draws [N, E, ...] each."""
        return self._join(
            self.outputs(obs, noisy=True),
            lambda lead, x, rows: lead.explore(x, tuple(d[rows] for d in draws), epsilon, masks_of(lead, mask, rows)),
        )

    def _join(
        self, outputs: list[tuple[list[int], Tensor]], decide: Callable[[Trainable, Tensor, Any], np.ndarray]
    ) -> np.ndarray:
        """Actions that `decide` takes from the first member and the outputs of each group, in population order."""
        if len(outputs) == 1:
            return decide(self.agents[0], outputs[0][1], slice(None))
        parts = [(members, decide(self.agents[members[0]], values, members)) for members, values in outputs]
        chosen = np.empty((len(self.agents), *parts[0][1].shape[1:]), parts[0][1].dtype)
        for members, part in parts:
            chosen[members] = part
        return chosen

    def release(self) -> None:
        """Copy every row back into its member's own tensors."""
        for group in self.groups:
            group.engine.release()


Learner = FusedLearner | SequentialLearner


def choose_learner(agents: Sequence[Trainable], wanted: str = "auto") -> tuple[type[Learner], str]:
    """The learner by a fixed rule over (algorithm, genomes, device), and the reason.

    Args:
        wanted: "auto", "fused" or "sequential".

    Raises:
        ValueError: "fused" is asked for and a member does not stack.
    """
    if wanted not in ("auto", "fused", "sequential"):
        raise ConfigError(unknown_name("learner", str(wanted), ("auto", "fused", "sequential")))
    reason = next((f"agent {a.index} does not stack: {why}" for a in agents if (why := unfusable(a))), "")
    if wanted == "fused" and reason:
        raise ConfigError(f"learner='fused' is not possible: {reason}. fix: learner='auto'")
    if wanted == "sequential":
        return SequentialLearner, "asked for"
    if reason:
        return SequentialLearner, reason
    return FusedLearner, "every network is a stack of dense layers"


def unfusable(agent: Any) -> str:
    """Why an agent must train by itself; empty where it need not."""
    update: Any = getattr(type(agent), "update", None)
    if update is None or getattr(update, "is_missing", False):
        return "it defines learn() only"
    if type(agent).learn is not type(agent).published_learn:
        return "it has a learn() of its own"
    if agent.binding() is None:
        return "a network is no plain stack of dense layers, or its optimiser has no flat rule"
    return ""
