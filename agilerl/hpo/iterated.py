"""Population-based training whose interval grows: short at first, longer after every plateau (IPBT)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from agilerl.hpo import effects
from agilerl.hpo.bandit import Gains, gaussian_processes, places_of, propose
from agilerl.hpo.evolution import Births
from agilerl.hpo.pbt import QUARTER, TruncationSelection, successor
from agilerl.hpo.stopping import is_stuck
from agilerl.hpo.tournament import rank
from agilerl.modules.paths import resolve
from agilerl.rng import Purpose, stream
from agilerl.telemetry.record import MemberRecord

GROWTH = 2  # of the interval at a restart
PATIENCE = 4  # selections without progress before one
OLD_SHARE = 0.5  # of a weight after a restart; the rest is drawn anew


@torch.no_grad()
def shrink_and_perturb(network: nn.Module, share: float, rng: np.random.Generator) -> None:
    """Replace the weights w and biases of layers by share * w + (1 - share) * fresh, in place.

    Ash and Adams 2020 (arXiv:1910.08475), section 4, as the interpolation with fresh weights of Schwarzer et al. 2023
    (arXiv:2305.19452). `fresh` is uniform within 1 / sqrt(inputs of the layer), as torch initialises dense
    and convolutional layers. Normalisation layers, which have no weight of two dimensions, and the deviations of noisy
    layers stay.
    """
    for _, module in network.named_modules():
        parameters = {name: p for name, p in module.named_parameters(recurse=False) if "sigma" not in name}
        wide = [parameter for parameter in parameters.values() if parameter.dim() >= 2]
        if not wide:
            continue
        bound = 1 / math.sqrt(max(1, math.prod(wide[0].shape[1:])))
        for parameter in parameters.values():
            fresh = torch.as_tensor(rng.uniform(-bound, bound, tuple(parameter.shape)))
            parameter.mul_(share).add_(fresh.to(parameter), alpha=1 - share)


def restart_weights(agent: Any, share: float, rng: np.random.Generator) -> None:
    """Apply `shrink_and_perturb` to all networks of an agent; targets become copies, optimiser moments zero."""
    for group in effects.registry_of(agent).groups:
        network = resolve(agent, group.eval_network)
        shrink_and_perturb(network, share, rng)
        for name in effects.shared_names(group):
            resolve(agent, name).load_state_dict(network.state_dict())
    agent.reinit_optimizers()


class IteratedTraining(TruncationSelection):
    """`TruncationSelection` that restarts on a plateau with twice the interval (IPBT).

    After Chebykin, Alderliesten and Bosman 2025 (arXiv:2511.09190): short intervals select what learns fast, long ones
    what ends high. A restart reuses weights by `restart_weights`, and a Gaussian process over the gains of all
    intervals proposes hyperparameters (`hpo.bandit.propose`). Here the best member goes on as it is, the others become
    copies of the best quarter, and a plateau is `hpo.stopping.is_stuck` over the last `PATIENCE` selections.

    Args:
        interval: generations between two selections until the first restart. seed: of the draws.
    Raises:
        ConfigError: scikit-learn is not installed.
    """

    def __init__(self, interval: int, seed: int) -> None:
        gaussian_processes("ipbt")
        super().__init__(interval, seed)
        self.first = interval  # until the first restart
        self.waited = 0  # generations since the last selection
        self.history: list[list[float]] = []  # fitness at each selection since the last restart
        self.gains = Gains()

    def next(
        self, population: Sequence[Any], records: Sequence[MemberRecord], generation: int
    ) -> tuple[list[Any], Births]:
        self.waited += 1
        if self.waited < self.interval:
            return list(population), ()
        self.waited = 0
        fitness = [record.fitness for record in records]
        ranges = dict(population[0].registry.hp_config.items())
        self.gains.add(population, fitness, generation, ranges, self.interval)
        self.history.append(fitness)
        reached = {agent.index: value for agent, value in zip(population, fitness, strict=True)}
        if is_stuck(self.history, PATIENCE):
            after, births = self._restarted(population, fitness, generation)
        else:
            after, births = self.replaced(population, fitness, generation)
            reached |= {birth.id: reached[birth.parent] for birth in births if birth.parent is not None}
        # A restarted policy has lost what its parent reached: its first gain is unknown.
        self.gains.before = {agent.index: reached[agent.index] for agent in after if agent.index in reached}
        return after, births

    def _restarted(
        self, population: Sequence[Any], fitness: Sequence[float], generation: int
    ) -> tuple[list[Any], Births]:
        rng = stream(self.seed, Purpose.FOUNDERS, generation)
        ranges = dict(population[0].registry.hp_config.items())
        order = [int(slot) for slot in rank(fitness).argsort()]
        best = order[-max(1, len(order) // QUARTER) :]
        after, births, free = list(population), [], max(agent.index for agent in population) + 1
        pending: list[tuple[float, ...]] = []
        for slot in order[:-1]:
            parent = population[best[int(rng.integers(len(best)))]]
            values = propose(self.gains.trials, pending, generation + 1, ranges, rng)
            after[slot], birth = successor(parent, free, values, generation, "restart")
            restart_weights(after[slot], OLD_SHARE, rng)
            pending.append(places_of(after[slot], ranges))
            births.append(birth)
            free += 1
        self.interval, self.history = GROWTH * self.interval, []
        return after, tuple(births)

    def begin_anew(self, env_steps: int) -> None:
        """Return to the first interval, for new founders; gains of hyperparameters remain known."""
        self.interval, self.waited, self.history = self.first, 0, []
        self.gains.begin_anew()

    def renamed(self, ids: Mapping[int, int]) -> None:
        self.gains.renamed(ids)

    def state(self) -> dict[str, Any]:
        counters = {"interval": self.interval, "waited": self.waited, "history": [list(row) for row in self.history]}
        return {**super().state(), **counters, **self.gains.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        super().load_state(state)
        self.interval, self.waited = int(state["interval"]), int(state["waited"])
        self.history = [list(row) for row in state["history"]]
        self.gains.load_state(state)
