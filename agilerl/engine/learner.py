"""A population as few tensor programs: members in groups, each of which acts and learns in one pass."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from agilerl.engine.choose import Choice, bind, choose
from agilerl.engine.modules import ModuleEngine
from agilerl.engine.parts import MemberBinding, by_size, parts_of
from agilerl.engine.protocol import Draws, Mask, Trainable, TransitionBatch, UpdateResult
from agilerl.engine.rows.kernels import RULES, TORCH, Kernels, rule_of
from agilerl.engine.rows.rows_engine import RowsEngine
from agilerl.modules.base import EvolvableModule
from agilerl.modules.layers import set_noise
from agilerl.modules.paths import resolve
from agilerl.ranks import ONE, Ranks
from agilerl.tree import leaves, map_leaves, put


class Group(ABC):
    """Members that learn in one call, with an engine. What goes in and comes out has a member axis, [N_g, ...].

    Attributes:
        members: positions in the population, in row order. agents: the members themselves.
        lead: the member whose `update` and options stand for all of them. engine: what runs their updates.
        prepare: stored observations (nested for Dict and Tuple spaces) as `values` and `learn` take them.
    """

    engine: Any

    def __init__(self, members: list[int], agents: list[Trainable], prepare: Callable[[Any], Any]) -> None:
        self.members, self.agents, self.prepare = members, agents, prepare
        self.lead: Any = agents[0]

    @abstractmethod
    def learn(self, batch: Any, live: Sequence[bool] | None) -> UpdateResult:
        """One update of the members that are `live` (None: of all) on their rows of `batch`."""

    @abstractmethod
    def outputs(self, obs: Any, noisy: bool = False) -> Tensor:
        """Policy outputs [N_g, E, out] for observations as the environment gives them, as constants.

        `noisy` keeps the noise of noisy layers, as exploration wants it.
        """

    def values(self, obs: Any) -> Tensor:
        """State values [N_g, B] of prepared observations, for algorithms that have `state_values`."""
        values: Tensor = self._outer(self.lead.state_values(self.engine, self._inner(obs)))
        return values

    def recur(self, obs: Any, hidden: dict[str, Tensor]) -> Any:
        """One step of a recurrent group; see `Learner.recur`."""
        return self._outer(self.lead.recur(self.engine, self._inner(self.prepare(obs)), self._inner(hidden)))

    def _inner(self, tree: Any) -> Any:
        """Tensors as the engine takes them."""
        return tree

    _outer = _inner  # what the engine gives, with its member axis

    @abstractmethod
    def set_policy_noise(self, noise: np.ndarray) -> None:
        """Give the policies' noisy layers [N_g, S] numbers."""

    @abstractmethod
    def is_finite(self) -> np.ndarray:
        """[N_g] bool: which members' weights are finite."""

    @abstractmethod
    def refresh(self) -> None:
        """Read the members' hyperparameters anew."""

    @abstractmethod
    def release(self) -> None:
        """Give every member tensors of its own again."""


class RowsGroup(Group):
    """Members that share rows."""

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
        self._noisy = self.lead.policy_program(self.engine.frozen)
        self._quiet = self.lead.policy_program(lambda name: self.engine.frozen(name, noisy=False))

    def learn(self, batch: Any, live: Sequence[bool] | None) -> UpdateResult:
        if live is None:
            result: UpdateResult = self.lead.update(self.engine, batch)
        else:
            with self.engine.only(live):
                result = self.lead.update(self.engine, batch)
        return result

    def outputs(self, obs: Any, noisy: bool = False) -> Tensor:
        with torch.no_grad():
            output: Tensor = (self._noisy if noisy else self._quiet)(self.prepare(obs))
        return output

    def set_policy_noise(self, noise: np.ndarray) -> None:
        self.engine.set_noise(self._policy, torch.from_numpy(noise).to(self.engine.device, self.engine.dtype))

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
    """One member by itself, with its own modules, which preprocess observations, and its torch optimisers."""

    def __init__(self, member: int, agent: Trainable, ranks: Ranks = ONE) -> None:
        super().__init__([member], [agent], lambda obs: obs)
        self._engine: ModuleEngine | None = None
        self._ranks = ranks

    @property
    def engine(self) -> ModuleEngine:  # type: ignore[override]
        """With the agent's live hyperparameters.

        Made when it is first asked for: an agent with a learn() of its own need not have what it asks for.
        """
        if self._engine is None:
            self._engine = ModuleEngine(self.lead, self._ranks)
        else:
            self._engine.refresh()
        return self._engine

    def learn(self, batch: Any, live: Sequence[bool] | None) -> UpdateResult:
        self.lead.follow_optimizers()
        result: UpdateResult = self.lead.update(self.engine, batch.of_member(0))
        return result.map(lambda x: x.detach().unsqueeze(0))

    def outputs(self, obs: Any, noisy: bool = False) -> Tensor:
        with torch.no_grad():
            output: Tensor = self.lead.policy_output(self._inner(obs), noisy)
        return output.unsqueeze(0)

    def _inner(self, tree: Any) -> Any:
        return map_leaves(lambda x: x[0], tree)

    def _outer(self, tree: Any) -> Any:
        return map_leaves(lambda x: x.unsqueeze(0), tree)

    def set_policy_noise(self, noise: np.ndarray) -> None:
        set_noise(self.lead.policy_module(), torch.from_numpy(noise[0]))

    def is_finite(self) -> np.ndarray:
        networks = self.lead.evaluation_networks().values()
        with torch.no_grad():
            sums = [p.sum() for network in networks for p in network.parameters() if p.is_floating_point()]
            return np.array([not sums or bool(torch.stack(sums).isfinite().all())])

    def refresh(self) -> None:
        """Hyperparameters are read with every update."""

    def release(self) -> None:
        """Nothing was adopted."""


class HiddenStates:
    """Hidden states of the members of a learner: [N_g, layers, E, units] of each group.

    Attributes:
        hidden: by group, key -> states; None where an episode has not begun yet.
    """

    def __init__(self, learner: Learner) -> None:
        self._groups = learner.groups
        self.hidden: list[dict[str, Tensor] | None] = [None] * len(learner.groups)

    def step(self, number: int, obs: Any) -> tuple[Tensor, Tensor]:
        """(raw output, values) of one group [N_g, E, ...]."""
        raw, value, self.hidden[number] = self._groups[number].recur(obs, self.of(number, obs))
        return raw, value

    def forget(self, number: int, over: np.ndarray) -> None:
        """Episodes of one group have ended, `over` [N_g, E] bool, or [N_g, E, M] agent by agent: they begin at zero."""
        states = self.hidden[number]
        if states is None or not over.any():
            return
        lead: Any = self._groups[number].lead
        ended = torch.from_numpy(over)
        if ended.dim() > 2:
            self.hidden[number] = lead.forget(states, ended)
        else:
            rows = ended.view(len(ended), 1, -1, 1)
            self.hidden[number] = {key: part.masked_fill(rows.to(part.device), 0) for key, part in states.items()}

    def of(self, number: int, obs: Any) -> dict[str, Tensor]:
        """The hidden states of a group; zeros where an episode has not begun yet."""
        states = self.hidden[number]
        if states is not None:
            return states
        lead: Any = self._groups[number].lead
        members, lanes = next(leaves(obs)).shape[:2]
        start = lead.get_initial_hidden_state(lanes).items()
        return {key: part.expand(members, *part.shape).clone() for key, part in start}


class Learner:
    """Adopts a population for one generation; `release` gives every agent its own tensors back.

    Over rows, members fall into groups by architecture signature, update options, hyperparameter names and update
    frequency, and by size where narrow members would be padded to wide ones at a loss (`by_size`). Groups depend on the
    genomes alone, in population order. Otherwise each member is a group by itself.

    Args:
        agents: the members. choice: made for these agents as they are now; by default that of `choose`.
        kernels: what runs and moves rows.
        ranks: over whom what members learn is averaged; all of them hold the same members.

    Attributes:
        name: of the choice. groups: see `Group`.

    Raises:
        ValueError: the choice is of other agents, or of these before their optimisers were made anew.
    """

    def __init__(
        self,
        agents: Sequence[Trainable],
        choice: Choice | None = None,
        kernels: Kernels = TORCH,
        ranks: Ranks = ONE,
    ) -> None:
        self.agents, self.kernels, self.ranks = list(agents), kernels, ranks
        choice = choose(self.agents) if choice is None else choice
        self.name: str = choice.name
        self.groups: list[Group]
        if choice.name == "fused":
            self.groups = self._in_rows(choice.bindings)
        else:
            self.groups = [ModuleGroup(position, agent, ranks) for position, agent in enumerate(self.agents)]
        self._hidden = HiddenStates(self)

    def _in_rows(self, bindings: Sequence[MemberBinding]) -> list[Group]:
        if len(bindings) != len(self.agents):
            raise ValueError(f"a choice for {len(bindings)} agents cannot hold {len(self.agents)}: choose for these")
        by_key: dict[Any, list[int]] = {}
        for position, (agent, binding) in enumerate(zip(self.agents, bindings, strict=True)):
            if any(resolve(agent, o.name).optimizer is not o.optimizer for o in binding.optimizers):
                raise ValueError(f"agent {agent.index} has other optimisers than the choice was made for: choose anew")
            names, reading = tuple(agent.update_hyperparameters()), agent.reading()
            options = (reading, names, agent.update_interval(), *agent.update_options())
            by_key.setdefault((type(agent), binding.signature(), options), []).append(position)
        each = [
            [alike[i] for i in same_size]
            for alike in by_key.values()
            for same_size in by_size([bindings[i] for i in alike])
        ]
        return [
            RowsGroup(m, [self.agents[i] for i in m], [bindings[i] for i in m], self.kernels, self.ranks) for m in each
        ]

    # --- learning ---------------------------------------------------------------------------------------------------

    def learn(self, group: int, batch: Any, live: Sequence[bool] | None = None) -> UpdateResult:
        """One update of every member of a group on its own row of `batch` [N_g, B, ...]; results [N_g, ...].

        Members that are not `live` [N_g] do not move at all; their rows of `batch` must be finite, with weight 0.
        """
        chosen = self.groups[group]
        for row, agent in enumerate(chosen.agents):
            if live is None or live[row]:
                agent.__dict__["learn_counter"] += 1  # an assignment would look for something to register
        return chosen.learn(batch, live)

    def prepare(self, group: int, obs: Any) -> Any:
        """Stored observations (nested for Dict and Tuple spaces) as the engine of a group takes them."""
        return self.groups[group].prepare(obs)

    def refresh(self) -> None:
        """Read the members' hyperparameters anew."""
        for group in self.groups:
            group.refresh()

    # --- acting -----------------------------------------------------------------------------------------------------

    def outputs_of(self, group: int, obs: Any) -> Tensor:
        """Policy outputs [N_g, E, out] of one group for its own observations [N_g, E, ...], with noise."""
        return self.groups[group].outputs(obs, True)

    def recur(self, group: int, obs: Any, hidden: dict[str, Tensor]) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """One step of a recurrent group, for algorithms that have `recur`.

        Args:
            obs: [N_g, E, ...] as the environment gives them. hidden: key -> [N_g, layers, E, units].

        Returns:
            (raw output [N_g, E, out], values [N_g, E], next hidden states).
        """
        result: tuple[Tensor, Tensor, dict[str, Tensor]] = self.groups[group].recur(obs, hidden)
        return result

    def begin_episodes(self) -> None:
        """Every lane that `act_greedy` plays in begins an episode: recurrent policies start anew."""
        self._hidden = HiddenStates(self)

    def end_episodes(self, over: np.ndarray) -> None:
        """Episodes of agents of teams have ended where `act_greedy` plays, `over` [N, E, M]; their teams go on."""
        if self.agents[0].is_recurrent:
            for number, group in enumerate(self.groups):
                self._hidden.forget(number, over[group.members])

    def act_greedy(self, obs: Any, mask: Mask = None) -> Any:
        """Greedy actions of all members for the environment, [N, E, ...]; obs [N, E, ...], mask [N, E, A]. Dict and
        Tuple actions are nested as the space is."""
        parts, is_recurrent = [], self.agents[0].is_recurrent
        for number, group in enumerate(self.groups):
            group_obs, lead = self._own(group, obs), group.lead
            raw = self._hidden.step(number, group_obs)[0] if is_recurrent else group.outputs(group_obs)
            legal = None if mask is None else lead.legal_choices(mask[group.members])
            parts.append(lead.environment_action(lead.greedy(raw, legal)))
        return self._joined(parts)

    def explore(self, obs: Any, draws: Draws, epsilon: float, mask: Mask = None) -> np.ndarray:
        """Exploring actions to store, [N, E, ...]; draws [N, E, ...] each."""
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
        """Give the policies' noisy layers [N, S] numbers; a member with fewer than S has them first."""
        for group in self.groups:
            group.set_policy_noise(noise[group.members])

    def _own(self, group: Group, obs: Any) -> Any:
        """The rows of a group's members."""
        return obs if len(self.groups) == 1 else map_leaves(lambda x: x[group.members], obs)

    def _joined(self, parts: list[Any]) -> Any:
        """The actions of each group, in population order; nested as the space is."""
        if len(parts) == 1:
            return parts[0]
        chosen = map_leaves(lambda x: np.empty((len(self.agents), *x.shape[1:]), x.dtype), parts[0])
        for group, part in zip(self.groups, parts, strict=True):
            put(chosen, group.members, part)
        return chosen

    # --- the members' own tensors -----------------------------------------------------------------------------------

    def is_finite(self) -> np.ndarray:
        """[N] bool: which members' weights are finite, targets left out (they follow, and show in the loss)."""
        if len(self.groups) == 1:
            return self.groups[0].is_finite()
        finite = np.ones(len(self.agents), dtype=bool)
        for group in self.groups:
            finite[group.members] = group.is_finite()
        return finite

    def settle(self) -> None:
        """After the updates of one call: nothing to do while agents are adopted, `release` does all of it."""

    def release(self) -> None:
        """Copy every row back into its member's own tensors."""
        for group in self.groups:
            group.release()


class Ownership:
    """The networks, parameters, moments and step counts that an agent's row was bound to.

    Args:
        agent: whose row `engine` has just adopted; it is not kept. binding: of the row.
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
        """Whether everything is as it was bound, of the networks that it was bound to."""
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
            return False  # hooks, say: not a stack of parts any more
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
        """Tell the torch optimisers' own counters how many steps each of them took."""
        for name, taken in self._engine.steps_taken().items():
            if taken != self._taken[name]:
                torch._foreach_add_(self._counters[name], taken - self._taken[name])
                self._taken[name] = taken


class Alone(Learner):
    """The learner of one agent, which lives as long as what it was made for.

    It knows the agent by a weak reference only: the agent keeps it, and a circle would keep both in memory.
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
        """Whether networks, and of a row the parameters, moments and step counts, are the ones that it was made for."""
        if any(resolve(agent, name) is not network for name, network in self._networks):
            return False
        return self._ownership is None or self._ownership.holds(agent)

    def settle(self) -> None:
        """Bring the torch optimisers' step counters up to date."""
        if self._ownership is not None:
            self._ownership.settle()

    def release(self) -> None:
        """The row stays the agent's."""
        self.settle()


def learner_of(agent: Trainable, plain: bool = False) -> Alone:
    """The learner of one agent that learns by itself, with its live hyperparameters; made anew where it is not current.

    It is kept on the agent, and never copied, pickled or saved with it. Call `settle()` after its updates.

    Args:
        plain: the reference path, with the agent's own modules and torch optimisers.
    """
    agent.follow_optimizers()
    learners: dict[bool, Alone] = agent.__dict__.setdefault("_learner", {})
    learner = learners.get(plain)
    if learner is None or not learner.is_current(agent):
        learner = learners[plain] = Alone(agent, plain)
    learner.refresh()
    return learner


def learn_alone(agent: Trainable, batch: TransitionBatch, plain: bool = False) -> UpdateResult:
    """One update of one agent on a batch [B, ...] of stored observations; the results have no member axis."""
    learner = learner_of(agent, plain)
    prepare = learner.groups[0].prepare
    prepared = replace(batch, obs=prepare(batch.obs), next_obs=prepare(batch.next_obs))
    result = learner.learn(0, prepared.map(lambda x: x.unsqueeze(0)))
    learner.settle()
    return result.map(lambda x: x[0])
