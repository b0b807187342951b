"""Mutation of a population: one operator per agent, drawn by relative probability."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, TypeVar

import numpy as np

from agilerl.core import foreign
from agilerl.core.arguments import Checked
from agilerl.core.ranges import Fraction, NonNegative
from agilerl.core.rng import Purpose, resolve_seed, restored_generator, stream
from agilerl.errors import AgileRLWarning, MutationError, warn_once
from agilerl.hpo import effects
from agilerl.hpo.architecture import ArchitectureOptions, mutate_architecture
from agilerl.hpo.effects import MutationRecord
from agilerl.hpo.kinds import KINDS, Kind
from agilerl.hpo.operators import Selection
from agilerl.hpo.parameter_noise import NoiseOptions, mutate_parameters
from agilerl.hpo.tournament import SettingError, check_agents
from agilerl.modules.activations import activation as check_activation
from agilerl.modules.base import single_draw
from agilerl.modules.paths import resolve

__all__ = ["MutationError", "MutationRecord", "Mutations"]
Agent = TypeVar("Agent")


def _without_owner(member: Any, path: str) -> str:
    """Return the label of a mutation: its path without the name of a team's network."""
    names = foreign.policies(member.registry) if path else ()
    return next((path.removeprefix(f"{name}.") for name in names if path.startswith(f"{name}.")), path)


class Mutations(Checked):
    """Mutate agents in place.

    Args:
        no_mutation, architecture, parameters, activation, rl_hp: relative probabilities of the operators.
        new_layer_prob: probability of the layer methods within architecture mutations.
        mutation_sd: standard deviation of the parameter noise, relative to the weight.
        activation_selection: activations to choose from; ReLU, ELU, GELU by default.
        mutate_elite: False leaves the agent in slot 0 unchanged.
        rand_seed: seed of all draws, one stream per (call, slot); None follows `torch.manual_seed`.
        device, accelerator: stored only; each agent is mutated on its own device.
        published: use the published magnitudes of parameter noise and fresh weights, without bounds.
        noise_bound, super_noise_bound: maximum relative change of the policy's output by parameter noise.
        removal_bound: the same for architecture mutations that do not preserve the function; half of it for all
            networks that are not policies.
        removal: whether to allow methods that remove units or layers.
        algo, arch, agent_ids: ignored; accepted for compatibility.
        rl_hp_selection, min_*, max_*: legacy arguments, see `hpo.operators.Selection`.

    Attributes:
        others: relative weights of the kinds that have no argument, by name (`hpo.kinds`).
        rng: assign any object with numpy's `choice` to replace the stream of operator and method draws; None resets it.
        last_births: one `MutationRecord` per agent of the last `mutation` call.
    """

    argument_error = SettingError

    def __init__(
        self, no_mutation: NonNegative, architecture: NonNegative, new_layer_prob: Fraction,
        parameters: NonNegative, activation: NonNegative, rl_hp: NonNegative,
        mutation_sd: NonNegative = 0.1, activation_selection: Sequence[str] | None = None,
        mutate_elite: bool = True, rand_seed: int | None = None, device: Any = "cpu", accelerator: Any = None, *,
        published: bool = False, noise_bound: NonNegative = 0.02, super_noise_bound: NonNegative = 0.05,
        removal_bound: NonNegative = 0.1, removal: bool = True,
        algo: str | None = None, arch: str | None = None, agent_ids: Sequence[str] | None = None,
        rl_hp_selection: Sequence[str] | None = None, min_lr: float | None = None, max_lr: float | None = None,
        min_learn_step: float | None = None, max_learn_step: float | None = None,
        min_batch_size: float | None = None, max_batch_size: float | None = None,
    ) -> None:  # fmt: skip
        self.no_mut, self.architecture_mut = float(no_mutation), float(architecture)
        self.parameters_mut, self.activation_mut = float(parameters), float(activation)
        self.rl_hp_mut, self.new_layer_prob = float(rl_hp), float(new_layer_prob)
        self.mutation_sd = float(mutation_sd)
        self.activation_selection = list(activation_selection or ("ReLU", "ELU", "GELU"))
        for name in self.activation_selection:
            check_activation(name, hidden=True)
        self.mutate_elite, self.device, self.accelerator = bool(mutate_elite), device, accelerator
        self.rand_seed, self.seed = rand_seed, resolve_seed(rand_seed)
        self.published, self.algo, self.arch, self.agent_ids = published, algo, arch, agent_ids
        bound = None if published else float(removal_bound)
        fresh = "random" if published else "preserve"
        self.architecture_options = ArchitectureOptions(self.new_layer_prob, bound, fresh=fresh, removal=removal)
        normal, strong = float(noise_bound), float(super_noise_bound)
        self.noise_options = NoiseOptions(self.mutation_sd, normal, strong, published=published)
        self.selection = Selection.of(
            rl_hp_selection, min_lr=min_lr, max_lr=max_lr, min_learn_step=min_learn_step,
            max_learn_step=max_learn_step, min_batch_size=min_batch_size, max_batch_size=max_batch_size,
        )  # fmt: skip
        self.others: dict[str, float] = {}
        self.calls = 0
        self._replaced: Any = None
        self._stream = stream(self.seed, Purpose.MUTATION)
        self.last_births: list[MutationRecord] = []

    @property
    def rng(self) -> Any:
        """Source of operator and method draws."""
        return self._stream if self._replaced is None else self._replaced

    @rng.setter
    def rng(self, rng: Any) -> None:
        self._replaced = rng

    def state(self) -> dict[str, Any]:
        """State that the draws of the next call depend on.
        Raises MutationError: `rng` was replaced by something other than a numpy generator."""
        replaced = self._replaced
        if replaced is not None and not isinstance(replaced, np.random.Generator):
            raise MutationError(
                f"mutation.rng is a {type(replaced).__name__}, whose state cannot be saved. "
                "fix: mutation.rng = numpy.random.default_rng(seed), or None."
            )
        rng_state = None if replaced is None else replaced.bit_generator.state
        return {"seed": self.seed, "calls": self.calls, "replaced": rng_state}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the output of `state`."""
        self.seed, self.calls = int(state["seed"]), int(state["calls"])
        self._replaced = None if state["replaced"] is None else restored_generator(state["replaced"])

    @property
    def weights(self) -> dict[str, float]:
        """Relative weight of each kind of mutation, by its name."""
        return {
            "none": self.no_mut, "architecture": self.architecture_mut, "parameters": self.parameters_mut,
            "activation": self.activation_mut, "rl_hp": self.rl_hp_mut, **self.others,
        }  # fmt: skip

    # -- the population ------------------------------------------------------------------------------------------

    def check_for_language(self) -> None:
        """Raise MutationError for any mutation of language policies other than hyperparameters."""
        wrong = [name for name, weight in self.weights.items() if weight > 0 and not KINDS[name].of_language]
        if wrong:
            raise MutationError(
                f"the base of language policies is frozen: {' and '.join(wrong)} mutations do not apply, those of "
                "hyperparameters do. fix: Mutations(no_mutation=0.5, architecture=0, new_layer_prob=0, parameters=0, "
                "activation=0, rl_hp=0.5)."
            )

    def mutation(self, population: Sequence[Agent], pre_training_mut: bool = False) -> list[Agent]:
        """Mutate each agent by one operator, in place; return the same agents, in order.
        `pre_training_mut`: exclude "no mutation"."""
        return self._mutate(population, pre_training_mut, has_elite=True)

    def mutation_of_part(self, agents: Sequence[Agent], has_elite: bool) -> list[Agent]:
        """Like `mutation`, for a part of the population, whose first agent is the elite only if `has_elite`."""
        return self._mutate(agents, False, has_elite)

    def _mutate(self, population: Sequence[Agent], pre_training_mut: bool, has_elite: bool) -> list[Agent]:
        check_agents(population, "mutation")
        self._warn_of_no_effect(population)
        options = self._options(pre_training_mut)
        self.calls += 1
        self.last_births = []
        for slot, agent in enumerate(population):
            self._stream = stream(self.seed, Purpose.MUTATION, self.calls, slot)
            kind = self._draw(options)
            self._run(agent, KINDS["none"] if slot == 0 and has_elite and not self.mutate_elite else kind)
            self.last_births.append(effects.inner(agent).mutation_record or MutationRecord())
        return list(population)

    def _warn_of_no_effect(self, population: Sequence[Any]) -> None:
        """Warn once if hyperparameters alone mutate, and no agent has any to mutate."""
        if [name for name, weight in self.weights.items() if weight > 0 and name != "none"] != ["rl_hp"]:
            return
        members = [m for m in map(effects.inner, population) if hasattr(m, "registry")]
        if members and not any(self.selection.config_for(m, effects.registry_of(m).hp_config) for m in members):
            name = type(members[0]).__name__
            warn_once(
                f"no hp_config {name}",
                f"Mutations(rl_hp={self.rl_hp_mut:g}) changes nothing: no {name} of the population has an hp_config, "
                "which lists the hyperparameters to mutate with their ranges. "
                "fix: hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)) where the agents are made "
                "(mutation.rl_hp_selection in a manifest).",
            )

    def _options(self, pre_training: bool) -> list[tuple[float, Kind]]:
        weights = {**self.weights, **({"none": 0.0} if pre_training else {})}
        return [(weights[name], kind) for name, kind in KINDS.items() if weights.get(name, 0) > 0] or [
            (1.0, KINDS["none"])
        ]

    def _draw(self, options: list[tuple[float, Kind]]) -> Kind:
        if len(options) == 1:
            return options[0][1]
        total = sum(weight for weight, _ in options)
        chosen = self.rng.choice(list(range(len(options))), p=[weight / total for weight, _ in options])
        return options[int(single_draw(chosen))][1]

    def _run(self, agent: Agent, kind: Kind) -> Agent:
        """Apply, label and record a mutation; hooks run only if something changed."""
        member = effects.inner(agent)
        record = resolve_name(kind.operator)(self, member) if kind.operator else MutationRecord()
        member.mut = KINDS[record.kind].label or _without_owner(member, record.path)
        member.mutation_record = record
        if record.kind != "none" and foreign.has_methods(member, "mutation_hook"):
            member.mutation_hook()
        return agent

    def no_mutation(self, individual: Agent) -> Agent:
        """Label the agent as unchanged."""
        return self._run(individual, KINDS["none"])

    def architecture_mutate(self, individual: Agent) -> Agent:
        """Change the architecture of all evaluation networks; targets and optimisers follow."""
        return self._single(individual, "architecture")

    def parameter_mutation(self, individual: Agent) -> Agent:
        """Add bounded noise to a tenth of the policy's weights."""
        return self._single(individual, "parameters")

    def activation_mutation(self, individual: Agent) -> Agent:
        """Change the hidden activation of all networks."""
        return self._single(individual, "activation")

    def rl_hyperparam_mutation(self, individual: Agent) -> Agent:
        """Move one hyperparameter by one step."""
        return self._single(individual, "rl_hp")

    def _single(self, agent: Agent, name: str) -> Agent:
        self.calls += 1
        self._stream = stream(self.seed, Purpose.MUTATION, self.calls)
        return self._run(agent, KINDS[name])

    def _architecture(self, agent: Any) -> MutationRecord:
        return mutate_architecture(agent, self.architecture_options, self.rng, self._stream)

    def _parameters(self, agent: Any) -> MutationRecord:
        return mutate_parameters(agent, self.noise_options, self._stream)

    def _activation(self, agent: Any) -> MutationRecord:
        group = effects.drawn_policy(agent, self._stream)
        policy = effects.networks_of(agent)[group.eval_network]
        current = foreign.activation(policy)
        if current is None:
            message = f"Activation mutations are not supported by {type(policy).__name__}: it has no activation."
            warnings.warn(message, AgileRLWarning, stacklevel=4)
            return MutationRecord()
        others = [name for name in self.activation_selection if name != current]
        if not others:
            return MutationRecord()
        new = str(single_draw(self.rng.choice(others)))
        probes = effects.probes_of(agent, group.eval_network, self._stream)
        before = effects.outputs_of(effects.networks_of(agent), probes)
        probe = None if self.published else probes.get(group.eval_network)
        changed = effects.change_activations(agent, policy, new, probe)
        if changed:
            effects.rebuild_optimizers(agent, {name: resolve(agent, name) for name in changed}, changed)
        changes = effects.changes(before, effects.outputs_of(effects.networks_of(agent), probes))
        name = group.eval_network
        beside = effects.others(changes, name)
        return MutationRecord("activation", "activation", current, new, changes.get(name), beside)

    def _hyperparameter(self, agent: Any) -> MutationRecord:
        config = self.selection.config_for(agent, effects.registry_of(agent).hp_config)
        if not config:
            return MutationRecord()
        name, parameter = config.sample(self.rng)
        if not hasattr(agent, name):
            raise MutationError(f"hp_config names {name!r}, which {type(agent).__name__} lacks. fix: leave it out.")
        before = resolve(agent, name)
        parameter.value = before  # use the live attribute, not a cached value
        after = parameter.mutate(self.rng)
        if np.array_equal(before, after):
            return MutationRecord()
        setattr(agent, name, after)
        plain = [v.tolist() if isinstance(v, np.ndarray) else v for v in (before, after)]
        return MutationRecord("rl_hp", name, plain[0], plain[1], 0.0)
