"""Population as a few tensor programs: each group of members acts and learns in one pass."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.core import foreign
from agilerl.core.transfer import to_device
from agilerl.core.tree import Tree, leaves, map_leaves, put
from agilerl.engine.choose import Choice, bind, choose
from agilerl.engine.modules import ModuleEngine
from agilerl.engine.parts import MemberBinding, by_size, parts_of
from agilerl.engine.protocol import Draws, Mask, Network, Trainable, TransitionBatch, TransitionBatches, UpdateResult
from agilerl.engine.recipes import OffPolicyRecipe, PolicyGradientRecipe, Recipe, recipe_of
from agilerl.engine.rows.kernels import RULES, TORCH, Kernels, rule_of
from agilerl.engine.rows.native_forward import forward_copies
from agilerl.engine.rows.rows_engine import RowsEngine
from agilerl.errors import AlgorithmError, ConfigError
from agilerl.modules.base import EvolvableModule
from agilerl.modules.layers import set_noise
from agilerl.modules.paths import resolve
from agilerl.networks.ensemble import Ensemble
from agilerl.ranks import ONE, Ranks


def not_a_result(agent: foreign.Agent, result: object) -> AlgorithmError:
    """Return the error for an `update`, which may be a user's, that returned something else than an `UpdateResult`."""
    return AlgorithmError(
        f"{type(agent).__name__}.update returned an object of {type(result).__name__}; expected an UpdateResult. "
        "fix: return super().update(engine, batch), or agilerl.engine.protocol.UpdateResult(loss)."
    )


class Group(ABC):
    """Members that learn in one call of one engine. Inputs and outputs have a member axis, [N_g, ...].

    Attributes:
        members: positions in the population, in row order. agents: the members.
        lead: member whose `update` and options are used for all of them. engine: runs their updates.
        prepare: converts stored observations (nested for Dict and Tuple spaces) to inputs of `values` and `learn`.
        recipe: the update as data, if a back end can run whole updates; None runs `update` of the lead.
    """

    engine: Any
    recipe: Recipe | None = None

    def __init__(self, members: list[int], agents: list[Trainable], prepare: Callable[[Any], Any]) -> None:
        self.members, self.agents, self.prepare = members, agents, prepare
        self.lead: Any = agents[0]

    @abstractmethod
    def learn(self, batch: TransitionBatch, live: Sequence[bool] | None) -> UpdateResult:
        """Update the members that are `live` (None: all) once on their rows of `batch`."""

    def learn_each(self, batches: TransitionBatches, live: Sequence[bool] | None = None) -> list[UpdateResult]:
        """Update every live member on each of `batches`, in one call if a back end can; see `Learner.learn`."""
        for row, agent in enumerate(self.agents):
            if live is None or live[row]:
                agent.__dict__["learn_counter"] += batches.count  # see `Learner.learn`
        results = None if self.recipe is None else self.learn_whole(batches, live)
        return [self.learn(batch, live) for batch in batches.each()] if results is None else results

    def learn_whole(self, batches: TransitionBatches, live: Sequence[bool] | None) -> list[UpdateResult] | None:
        """Run all updates of a recipe in one call of a back end; None by default (unsupported)."""
        return None

    def learn_epoch(self, rollout: object, plan: object) -> list[UpdateResult] | None:
        """Run the minibatches of one epoch in one call of a back end; see `Learner.learn_epoch`."""
        return None

    @abstractmethod
    def outputs(self, obs: Tree, noisy: bool = False) -> Tensor:
        """Return policy outputs [N_g, E, out] for environment observations, as constants.

        `noisy` keeps the noise of noisy layers, for exploration.
        """

    @property
    def acts_by_row(self) -> bool:
        """See `Learner.acts_by_row`; False by default."""
        return False

    def greedy_outputs(self, obs: Tree) -> Tensor:
        """Return policy outputs [N_g, E, out] for greedy actions; see `outputs`."""
        return self.outputs(obs)

    def values(self, obs: Tree) -> Tensor:
        """Return state values [N_g, B] of prepared observations, for algorithms with `state_values`."""
        values: Tensor = self._outer(self.lead.state_values(self.engine, self._inner(obs)))
        return values

    def recur(self, obs: Tree, hidden: dict[str, Tensor]) -> Any:
        """Step a recurrent group; see `Learner.recur`."""
        return self._outer(self.lead.recur(self.engine, self._inner(self.prepare(obs)), self._inner(hidden)))

    def _inner(self, tree: Tree) -> Any:
        """Convert tensors to engine inputs."""
        return tree

    _outer = _inner  # convert engine outputs to tensors with a member axis

    @abstractmethod
    def set_policy_noise(self, noise: np.ndarray) -> None:
        """Set the noise [N_g, S] of the policies' noisy layers."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Device of the members' networks."""

    @abstractmethod
    def finite_flags(self) -> Tensor:
        """Return [N_g] bool on the device, without waiting for it: members whose weights are finite."""

    @abstractmethod
    def is_finite(self) -> np.ndarray:
        """Return [N_g] bool: members whose weights are finite."""

    @abstractmethod
    def refresh(self) -> None:
        """Reload the members' hyperparameters."""

    @abstractmethod
    def release(self) -> None:
        """Give every member separate tensors again."""


class RowsGroup(Group):
    """Members stacked as rows."""

    engine: RowsEngine

    def __init__(
        self,
        members: list[int],
        agents: list[Trainable],
        bindings: list[MemberBinding],
        kernels: Kernels,
        ranks: Ranks = ONE,
    ) -> None:
        super().__init__(members, agents, agents[0].row_input)
        rates = {o.name: o.lr for o in self.lead.registry.optimizers}
        self.engine = RowsEngine(bindings, rates, self.lead.evaluation_networks(), kernels, ranks)
        self._hyperparameters: list[dict[str, float]] = []
        self.refresh()
        self._policy = str(self.lead.registry.policy())
        self.recipe = recipe_of(self.lead) if kernels.whole and ranks.size == 1 else None
        self._noisy = self.lead.policy_program(self.engine.frozen)
        self._quiet = self.lead.policy_program(lambda name: self.engine.frozen(name, noisy=False))

    def learn(self, batch: Any, live: Sequence[bool] | None) -> UpdateResult:
        if live is None:
            result: UpdateResult = self.lead.update(self.engine, batch)
        else:
            with self.engine.only(live):
                result = self.lead.update(self.engine, batch)
        if not isinstance(result, UpdateResult):
            raise not_a_result(self.lead, result)
        return result

    def learn_whole(self, batches: TransitionBatches, live: Sequence[bool] | None) -> list[UpdateResult] | None:
        if not isinstance(self.recipe, OffPolicyRecipe):
            return None
        return self.engine.whole(self.recipe, batches.stacked(), live)

    def learn_epoch(self, rollout: object, plan: Any) -> list[UpdateResult] | None:
        if not isinstance(self.recipe, PolicyGradientRecipe):
            return None
        results = self.engine.whole_epoch(self.recipe, rollout, plan)
        if results is not None:
            for agent, count in zip(self.agents, plan.live.sum(0).tolist(), strict=True):
                agent.__dict__["learn_counter"] += count  # see `Learner.learn`
        return results

    def outputs(self, obs: Tree, noisy: bool = False) -> Tensor:
        with torch.no_grad():
            output: Tensor = (self._noisy if noisy else self._quiet)(self.prepare(obs))
        return output

    @cached_property
    def _by_row(self) -> Network | None:
        """The policy program over networks that C runs row by row; None if torch has to run one of them."""
        runs: dict[str, Network | None] = {}

        def network(name: str) -> Network:
            runs[name] = self.engine.by_row(name)
            return runs[name] or self.engine.frozen(name, noisy=False)

        program = self.lead.policy_program(network)
        return program if runs and None not in runs.values() else None

    @property
    def acts_by_row(self) -> bool:
        return self._by_row is not None

    def greedy_outputs(self, obs: Tree) -> Tensor:
        run = self._by_row
        if run is None:
            return self.outputs(obs)
        with torch.no_grad():
            return run(self.prepare(obs))

    def set_policy_noise(self, noise: np.ndarray) -> None:
        self.engine.set_noise(self._policy, to_device(torch.from_numpy(noise), self.engine.device, self.engine.dtype))

    @property
    def device(self) -> torch.device:
        return self.engine.device

    def finite_flags(self) -> Tensor:
        flags = [cohort.value.sum(1).isfinite().view(-1, self.engine.count).all(0) for cohort in self.engine.cohorts]
        return torch.stack(flags).all(0)

    def is_finite(self) -> np.ndarray:
        return self.engine.is_finite()

    def refresh(self) -> None:
        values = [agent.update_hyperparameters() for agent in self.agents]
        if values != self._hyperparameters:
            self.engine.set_hyperparameters(
                {name: [member_values[name] for member_values in values] for name in values[0]}
            )
            self._hyperparameters = values

    def release(self) -> None:
        self.engine.release()


class ModuleGroup(Group):
    """One member with its modules, which preprocess observations, and its torch optimisers.

    Greedy actions of an `Ensemble` are computed in C where `kernels` can.
    """

    def __init__(self, member: int, agent: Trainable, ranks: Ranks = ONE, kernels: Kernels = TORCH) -> None:
        super().__init__([member], [agent], lambda obs: obs)
        self._engine: ModuleEngine | None = None
        self._ranks, policy = ranks, agent.policy_module()
        in_c = isinstance(policy, Ensemble) and next(policy.parameters()).dtype in kernels.whole
        self._in_c = forward_copies(policy.members) if in_c else None

    @property
    def engine(self) -> ModuleEngine:  # type: ignore[override]
        """Engine with the agent's live hyperparameters.

        Created on first use: agents with a custom learn() need not support it.
        """
        if self._engine is None:
            self._engine = ModuleEngine(self.lead, self._ranks)
        else:
            self._engine.refresh()
        return self._engine

    def learn(self, batch: Any, live: Sequence[bool] | None) -> UpdateResult:
        self.lead.follow_optimizers()
        result: UpdateResult = self.lead.update(self.engine, batch.of_member(0))
        if not isinstance(result, UpdateResult):
            raise not_a_result(self.lead, result)
        return result.map(lambda x: x.detach().unsqueeze(0))

    def outputs(self, obs: Tree, noisy: bool = False) -> Tensor:
        with torch.no_grad():
            output: Tensor = self.lead.policy_output(self._inner(obs), noisy)
        return output.unsqueeze(0)

    @property
    def acts_by_row(self) -> bool:
        return self._in_c is not None

    def greedy_outputs(self, obs: Tree) -> Tensor:
        if self._in_c is None:
            return self.outputs(obs)
        with torch.no_grad():
            rows = self._inner(obs)
            parts = [run(network.row_input(rows).expand(count, -1, -1)) for network, count, run in self._in_c]
            return torch.cat(parts).mean(0, keepdim=True)

    def _inner(self, tree: Tree) -> Any:
        return map_leaves(lambda x: x[0], tree)

    def _outer(self, tree: Tree) -> Any:
        return map_leaves(lambda x: x.unsqueeze(0), tree)

    def set_policy_noise(self, noise: np.ndarray) -> None:
        set_noise(self.lead.policy_module(), torch.from_numpy(noise[0]))

    @property
    def device(self) -> torch.device:
        return torch.device(self.lead.device)

    def finite_flags(self) -> Tensor:
        networks = self.lead.evaluation_networks().values()
        with torch.no_grad():
            sums = [p.sum() for network in networks for p in network.parameters() if p.is_floating_point()]
            total = torch.stack(sums) if sums else torch.zeros(1, device=self.device)
            return total.isfinite().all().view(1)

    def is_finite(self) -> np.ndarray:
        return self.finite_flags().cpu().numpy()

    def refresh(self) -> None:
        """No-op: hyperparameters are read at every update."""

    def release(self) -> None:
        """No-op: nothing was adopted."""


class HiddenStates:
    """Hidden states of the members of a learner: [N_g, layers, E, units] per group.

    Attributes:
        hidden: key -> states, per group; None before the first episode.
    """

    def __init__(self, learner: Learner) -> None:
        self._groups = learner.groups
        self.hidden: list[dict[str, Tensor] | None] = [None] * len(learner.groups)

    def step(self, number: int, obs: Tree) -> tuple[Tensor, Tensor]:
        """Return (raw output, values) of one group, [N_g, E, ...] each."""
        raw, value, self.hidden[number] = self._groups[number].recur(obs, self.of(number, obs))
        return raw, value

    def forget(self, number: int, over: np.ndarray) -> None:
        """Reset the states of ended episodes of one group: `over` [N_g, E] bool, or [N_g, E, M] per agent."""
        states = self.hidden[number]
        if states is None or not over.any():
            return
        lead: Any = self._groups[number].lead
        done = torch.from_numpy(over)
        if done.dim() > 2:
            self.hidden[number] = lead.forget(states, done)
        else:
            rows = done.view(len(done), 1, -1, 1)
            self.hidden[number] = {key: part.masked_fill(rows.to(part.device), 0) for key, part in states.items()}

    def of(self, number: int, obs: Tree) -> dict[str, Tensor]:
        """Return the hidden states of a group; initial ones before the first episode."""
        states = self.hidden[number]
        if states is not None:
            return states
        lead: Any = self._groups[number].lead
        members, lanes = next(leaves(obs)).shape[:2]
        start = lead.get_initial_hidden_state(lanes).items()
        return {key: part.expand(members, *part.shape).clone() for key, part in start}


class Learner:
    """Adopt a population for one generation; `release` gives every agent separate tensors again.

    Stacked members are grouped by architecture signature, update options, hyperparameter names and update frequency,
    and by size if padding narrow members to wide ones would cost more than another pass (`by_size`). Groups depend only
    on the genomes, in population order. Otherwise every member is a separate group.

    Args:
        agents: the members. choice: current choice for these agents; by default that of `choose`.
        kernels: run and update the rows.
        ranks: processes over which gradients are averaged; all hold the same members.

    Attributes:
        name: of the choice. groups: see `Group`.

    Raises:
        ValueError: the choice belongs to other agents, or their optimisers have been recreated since.
    """

    def __init__(
        self, agents: Sequence[Trainable], choice: Choice | None = None, kernels: Kernels = TORCH, ranks: Ranks = ONE
    ) -> None:
        self.agents, self.kernels, self.ranks = list(agents), kernels, ranks
        choice = choose(self.agents) if choice is None else choice
        self.name: str = choice.name
        self.groups: list[Group]
        if choice.name == "fused":
            self.groups = self._in_rows(choice.bindings)
        else:
            self.groups = [ModuleGroup(number, agent, ranks, kernels) for number, agent in enumerate(self.agents)]
        self._hidden = HiddenStates(self)

    def _in_rows(self, bindings: Sequence[MemberBinding]) -> list[Group]:
        if len(bindings) != len(self.agents):
            raise ValueError(f"the choice is for {len(bindings)} agents; got {len(self.agents)}. fix: choose(agents).")
        by_key: dict[Any, list[int]] = {}
        for position, (agent, binding) in enumerate(zip(self.agents, bindings, strict=True)):
            if any(resolve(agent, o.name).optimizer is not o.optimizer for o in binding.optimizers):
                raise ValueError(f"agent {agent.index} has new optimisers since the choice. fix: choose(agents).")
            names, reading = tuple(agent.update_hyperparameters()), agent.reading()
            options = (reading, names, agent.update_interval(), *agent.update_options())
            by_key.setdefault((type(agent), binding.signature(), options), []).append(position)
        parts = [
            [alike[i] for i in same_size]
            for alike in by_key.values()
            for same_size in by_size([bindings[i] for i in alike])
        ]
        return [
            RowsGroup(m, [self.agents[i] for i in m], [bindings[i] for i in m], self.kernels, self.ranks) for m in parts
        ]

    # --- learning ---------------------------------------------------------------------------------------------------

    def learn(self, group: int, batch: Any, live: Sequence[bool] | None = None) -> UpdateResult:
        """Update every member of a group once on its row of `batch` [N_g, B, ...]; results [N_g, ...].

        Members that are not `live` [N_g] are unchanged; their rows of `batch` must be finite, with weight 0.
        """
        chosen = self.groups[group]
        for row, agent in enumerate(chosen.agents):
            if live is None or live[row]:
                agent.__dict__["learn_counter"] += 1  # skips the registration in __setattr__
        return chosen.learn(batch, live)

    def learn_epoch(self, group: int, rollout: object, plan: object) -> list[UpdateResult] | None:
        """Update every member of a group on the minibatches of one epoch in one call; None if no back end can.

        Args:
            rollout: `engine.rollouts.Rollout`. plan: `engine.rollouts.EpochPlan`.
        """
        return self.groups[group].learn_epoch(rollout, plan)

    def prepare(self, group: int, obs: Tree) -> Any:
        """Convert stored observations (nested for Dict and Tuple spaces) to inputs of a group's engine."""
        return self.groups[group].prepare(obs)

    def refresh(self) -> None:
        """Reload the members' hyperparameters."""
        for group in self.groups:
            group.refresh()

    # --- acting -----------------------------------------------------------------------------------------------------

    def outputs_of(self, group: int, obs: Tree) -> Tensor:
        """Return policy outputs [N_g, E, out] of one group for its observations [N_g, E, ...], with noise."""
        return self.groups[group].outputs(obs, True)

    def recur(self, group: int, obs: Tree, hidden: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Step a recurrent group, for algorithms with `recur`.

        Args:
            obs: [N_g, E, ...] environment observations. hidden: key -> [N_g, layers, E, units].

        Returns:
            (raw output [N_g, E, out], values [N_g, E], next hidden states).
        """
        result: tuple[Tensor, Tensor, dict[str, Tensor]] = self.groups[group].recur(obs, hidden)
        return result

    def begin_episodes(self) -> None:
        """Reset the hidden states of `act_greedy`: an episode begins in every lane."""
        self._hidden = HiddenStates(self)

    def end_episodes(self, over: np.ndarray) -> None:
        """Reset the hidden states of `act_greedy` for single agents of teams that have ended: `over` [N, E, M]."""
        if self.agents[0].is_recurrent:
            for number, group in enumerate(self.groups):
                self._hidden.forget(number, over[group.members])

    @property
    def acts_by_row(self) -> bool:
        """Whether `act_greedy` runs all policies in C, row by row.

        The bits of a greedy action are then the same however members and lanes are cut among calls and processes, as
        long as `greedy` of the algorithm treats rows alone too, as those of this package do. In torch they depend on
        how many members and lanes are in a call. Known before the first call.
        """
        return not self.agents[0].is_recurrent and all(group.acts_by_row for group in self.groups)

    def act_greedy(self, obs: Tree, mask: Mask = None) -> Any:
        """Return greedy environment actions of all members, [N, E, ...]; obs [N, E, ...], mask [N, E, A]. Dict and
        Tuple actions are nested like the space."""
        parts, is_recurrent = [], self.agents[0].is_recurrent
        for number, group in enumerate(self.groups):
            group_obs, lead = self._own(group, obs), group.lead
            raw = self._hidden.step(number, group_obs)[0] if is_recurrent else group.greedy_outputs(group_obs)
            legal = None if mask is None else lead.legal_choices(mask[group.members])
            parts.append(lead.environment_action(lead.greedy(raw, legal)))
        return self._joined(parts)

    def explore(self, obs: Tree, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Return exploring actions in storage format, [N, E, ...]; draws [N, E, ...] each."""
        if len(self.groups) == 1:
            group = self.groups[0]
            legal = None if mask is None else group.lead.legal_choices(mask)
            actions: np.ndarray = group.lead.explore(group.outputs(obs, True), draws, epsilon, legal)
            return actions
        parts: list[Any] = []
        for group in self.groups:
            legal = None if mask is None else group.lead.legal_choices(mask[group.members])
            group_draws = tuple(draw[group.members] for draw in draws)
            parts.append(group.lead.explore(group.outputs(self._own(group, obs), True), group_draws, epsilon, legal))
        joined: np.ndarray = self._joined(parts)
        return joined

    def set_policy_noise(self, noise: np.ndarray) -> None:
        """Set the noise [N, S] of the policies' noisy layers; a member with fewer than S numbers uses the first."""
        for group in self.groups:
            group.set_policy_noise(noise[group.members])

    def _own(self, group: Group, obs: Tree) -> Any:
        """Select the rows of a group's members."""
        return obs if len(self.groups) == 1 else map_leaves(lambda x: x[group.members], obs)

    def _joined(self, parts: list[Any]) -> Any:
        """Join the actions of all groups in population order, nested like the space."""
        if len(parts) == 1:
            return parts[0]
        chosen = map_leaves(lambda x: np.empty((len(self.agents), *x.shape[1:]), x.dtype), parts[0])
        for group, part in zip(self.groups, parts, strict=True):
            put(chosen, group.members, part)
        return chosen

    # --- tensors of the members -------------------------------------------------------------------------------------

    def is_finite(self) -> np.ndarray:
        """Return [N] bool: members whose weights are finite, without targets (they follow, and affect the loss)."""
        if len(self.groups) == 1:
            return self.groups[0].is_finite()
        finite = np.ones(len(self.agents), dtype=bool)
        for group in self.groups:
            finite[group.members] = group.is_finite()
        return finite

    def settle(self) -> None:
        """No-op after the updates of one call: while agents are adopted, `release` does everything."""

    def release(self) -> None:
        """Copy every row back into its member's tensors."""
        for group in self.groups:
            group.release()


class Ownership:
    """Networks, parameters, moments and step counts that an agent's row was bound to.

    Args:
        agent: agent whose row `engine` has just adopted; no reference is kept. binding: of the row.
    """

    def __init__(self, agent: Trainable, binding: MemberBinding, engine: RowsEngine) -> None:
        self._binding, self._engine = binding, engine
        self._networks = [resolve(agent, name) for name in agent.registry.all_registered()]
        self._parameters = [p for network in self._networks for p in network.parameters()]
        self._pointers = [p.data_ptr() for p in self._parameters]
        engine.write_steps()
        self._states: list[tuple[torch.optim.Optimizer, nn.Parameter, str, int]] = []
        self._counters: dict[str, list[Tensor]] = {o.name: [] for o in binding.optimizers}
        for optimizer in binding.optimizers:
            moment = next(name for name in RULES[optimizer.rule.kind].moments if name is not None)
            for parameter in (p for g in optimizer.optimizer.param_groups for p in g["params"]):
                state = optimizer.optimizer.state[parameter]
                self._states.append((optimizer.optimizer, parameter, moment, state[moment].data_ptr()))
                self._counters[optimizer.name].append(state["step"])
        self._taken = {name: float(steps[0]) for name, steps in self._counters.items()}

    def holds(self, agent: Trainable) -> bool:
        """Whether the agent's parameters, moments and step counts are unchanged since binding."""
        present = [p for network in self._networks for p in network.parameters()]
        if len(present) != len(self._parameters):
            return False
        if any(
            p is not q or p.data_ptr() != at for p, q, at in zip(present, self._parameters, self._pointers, strict=True)
        ):
            return False
        if not all(
            isinstance(network, EvolvableModule) and parts_of(network) is not None for network in self._networks
        ):
            return False  # no longer a stack of parts, for example because of hooks
        bound = self._binding.optimizers
        live = [entry.wrapper(agent).optimizer for entry in agent.registry.optimizers]
        if any(o is not b.optimizer or rule_of(o) != b.rule for o, b in zip(live, bound, strict=True)):
            return False
        for optimizer, parameter, moment, pointer in self._states:
            value = optimizer.state.get(parameter, {}).get(moment)
            if value is None or value.data_ptr() != pointer:
                return False
        firsts = [(o, o.param_groups[0]["params"][0]) for o in live]
        return all(float(o.state[p]["step"]) == self._taken[b.name] for (o, p), b in zip(firsts, bound, strict=True))

    def settle(self) -> None:
        """Update the step counters of the torch optimisers."""
        for name, taken in self._engine.steps_taken().items():
            if taken != self._taken[name]:
                torch._foreach_add_(self._counters[name], taken - self._taken[name])
                self._taken[name] = taken


class Alone(Learner):
    """Single-agent learner, cached on the agent until its networks or optimisers change.

    Holds only a weak reference to the agent: a reference cycle would keep both in memory.
    """

    def __init__(self, agent: Trainable, plain: bool) -> None:
        self.plain = plain
        self._networks = [(name, resolve(agent, name)) for name in agent.registry.all_registered()]
        bound = None if plain else bind(agent)
        binding = bound if isinstance(bound, MemberBinding) else None
        choice = Choice("fused", "it is alone", (binding,)) if binding else Choice("sequential", "it does not stack")
        super().__init__([weakref.proxy(agent)], choice)
        self._ownership = Ownership(agent, binding, self.groups[0].engine) if binding else None

    def is_current(self, agent: Trainable) -> bool:
        """Whether the networks and, for rows, the parameters, moments and step counts are unchanged."""
        if any(resolve(agent, name) is not network for name, network in self._networks):
            return False
        return self._ownership is None or self._ownership.holds(agent)

    def settle(self) -> None:
        """Bring the torch optimisers' step counters up to date."""
        if self._ownership is not None:
            self._ownership.settle()

    def release(self) -> None:
        """Only settle: the row stays with the agent."""
        self.settle()


def learner_of(agent: Trainable, plain: bool = False) -> Alone:
    """Return the learner of a single agent with its live hyperparameters; recreated if it is not current.

    It is cached on the agent, and never copied, pickled or saved with it. Call `settle()` after its updates.

    Args:
        plain: use the reference path, with the agent's modules and torch optimisers.
    """
    agent.follow_optimizers()
    learners: dict[bool, Alone] = agent.__dict__.setdefault("_learner", {})
    learner = learners.get(plain)
    if learner is None or not learner.is_current(agent):
        learner = learners[plain] = Alone(agent, plain)
    learner.refresh()
    return learner


def check_learns(agent: Any) -> None:
    """Raise ConfigError for an agent whose policy is an ensemble."""
    if isinstance(agent.policy_module(), Ensemble):
        raise ConfigError(
            f"agent {agent.index} acts by the mean of several policies (training.ensemble), which does not learn. "
            "fix: its members, agilerl.load(RUN).population, which a run keeps with its checkpoints."
        )


def learn_alone(agent: Trainable, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
    """Update one agent once on a batch [B, ...] of stored observations; results have no member axis."""
    check_learns(agent)
    learner = learner_of(agent, plain)
    prepare = learner.groups[0].prepare
    prepared = replace(batch, obs=prepare(batch.obs), next_obs=prepare(batch.next_obs))
    result = learner.learn(0, prepared.map(lambda x: x.unsqueeze(0)))
    learner.settle()
    return result.map(lambda x: x[0])
