"""Members that differ in every hyperparameter of an update, trained together and each by itself.

By itself is the reference: the agent's modules with autograd and the optimisers of `torch.optim`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agilerl.core.tree import map_leaves
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatches, UpdateResult
from agilerl.engine.rows.kernels import TORCH, Kernels
from tests.differential.off_policy_case import state

TOLERANCE = 1e-10  # relative and absolute
SHRINK = 0.8  # of a hyperparameter, from one member to the next


@dataclass(frozen=True)
class Call:
    """Updates of one call: `first` to `last` (excluded) of all batches, for the members that are `live`."""

    first: int
    last: int
    live: tuple[bool, ...] = (True, True, True)


# One that rests, several at once, and a phase of delayed updates that does not begin with a call.
CALLS = Call(0, 3), Call(3, 4, (True, False, True)), Call(4, 5, (False, True, False)), Call(5, 7)


def vary(agents: Sequence[Any], *others: str) -> list[str]:
    """Give every member values of its own of all hyperparameters of an update, and of `others`; returns their names."""
    names = [*agents[0].update_hyperparameters(), *others]
    for name in names:
        for index, agent in enumerate(agents):
            setattr(agent, name, getattr(agents[0], name) * SHRINK**index)
        values = [getattr(agent, name) for agent in agents]
        assert len(set(values)) == len(agents), f"{name}: {values}"
    return names


def stacked(parts: Sequence[np.ndarray]) -> Tensor:
    """Numbers [U, K, ...] of each member as [U, N, K, ...], padded with zeros to the longest K."""
    longest = max(part.shape[1] for part in parts)
    out = torch.zeros(parts[0].shape[0], len(parts), longest, *parts[0].shape[2:], dtype=torch.float64)
    for row, part in enumerate(parts):
        out[:, row, : part.shape[1]] = torch.from_numpy(part)
    return out


def part_of(batches: TransitionBatches, call: Call, agents: Sequence[Any], discounts: bool) -> TransitionBatches:
    """The updates of one call; `discounts`: with those of the members, for back ends that know no gamma."""
    live = torch.tensor(call.live)
    cut = lambda x: x[call.first : call.last]  # noqa: E731
    fields, noise = ({k: map_leaves(cut, x) for k, x in part.items()} for part in (batches.fields, batches.noise))
    if discounts and "discount" not in fields:
        gamma = torch.tensor([agent.gamma for agent in agents], dtype=torch.float64)
        fields["discount"] = gamma.view(-1, *[1] * (fields["done"].dim() - 2)) * (1 - fields["done"])
    weight = cut(batches.weight) * live.view(-1, 1)
    count = call.last - call.first
    return TransitionBatches(fields, weight, noise, count, batches.number + call.first, batches.wants_priorities)


def prepared(group: Any, batches: TransitionBatches) -> TransitionBatches:
    """With observations as the group's engine takes them."""
    changed = {name: group.prepare(batches.fields[name]) for name in ("obs", "next_obs") if name in batches.fields}
    return replace(batches, fields={**batches.fields, **changed})


def together(
    agents: Sequence[Any], batches: TransitionBatches, kernels: Kernels = TORCH
) -> list[dict[int, UpdateResult]]:
    """Train all members in one group; results of each update by member. With `kernels.whole` C runs every call."""
    learner = Learner(agents, choose(agents, "fused"), kernels=kernels)
    (group,) = learner.groups
    assert group.members == list(range(len(agents)))
    results = []
    for call in CALLS:
        live = None if all(call.live) else call.live
        inputs = prepared(group, part_of(batches, call, agents, bool(kernels.whole)))
        some = group.learn_whole(inputs, live) if kernels.whole else group.learn_each(inputs, live)
        assert some is not None, "no kernel in C has run"
        for one in some:
            rows = enumerate(call.live)
            results.append({m: one.map(lambda x, m=m: x[m].clone()) for m, is_live in rows if is_live})
    learner.release()
    return results


def alone(
    agent: Any, member: int, batches: TransitionBatches, agents: Sequence[Any], calls: Sequence[Call] = CALLS
) -> list[UpdateResult | None]:
    """Train one member with its modules on its rows; results of each update, None where it rests."""
    learner = Learner([agent], choose([agent], "sequential"))
    results: list[UpdateResult | None] = []
    for call in calls:
        for batch in part_of(batches, call, agents, False).each():
            rows = batch.map(lambda x: x[[member]])
            results.append(learner.learn(0, rows).map(lambda x: x[0]) if call.live[member] else None)
    learner.release()
    return results


def close(one: Any, other: Any, what: str, tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}")


def assert_same_results(
    every: Sequence[dict[int, UpdateResult]],
    member: int,
    alone_results: Sequence[UpdateResult | None],
    tolerance: float = TOLERANCE,
) -> None:
    for number, (one, reference) in enumerate(zip(every, alone_results, strict=True)):
        assert (member in one) == (reference is not None)
        if reference is None:
            continue
        for name in ("loss", "actor_loss", "priorities", "kl"):
            mine, theirs = (getattr(result, name) for result in (one[member], reference))
            assert (mine is None) == (theirs is None), f"update {number}: {name}"
            if mine is not None:
                close(mine, theirs, f"update {number}: {name} of member {member}", tolerance)


def assert_same_state(
    members: Sequence[Any], expected: dict[str, Tensor], what: str, tolerance: float = TOLERANCE, idle: str = ""
) -> None:
    """All parameters, moments and counts of steps are the expected ones, by name.

    idle: an optimiser that makes no step, whose state may then be zeros or missing.
    """
    after = state(list(members))
    for name in [name for name in after.keys() - expected.keys() if idle and idle in name]:
        assert not after.pop(name).any(), f"{what}: {name}"
    assert after.keys() == expected.keys()
    for name, value in after.items():
        close(value, expected[name], f"{what}: {name}", tolerance)


def assert_each_learns_as_alone(agents: Sequence[Any], batches: TransitionBatches, kernels: Sequence[Kernels]) -> None:
    """Every member of the population learns what it learns alone, in each back end, from moments of its own.

    No hyperparameter is without effect on these batches.
    """
    names = vary(agents)
    for member, agent in enumerate(agents):  # other counts of steps and moments
        alone(agent, member, batches, agents, [Call(0, member + 2)])
    expected, results_alone = assert_together_as_alone(agents, batches, kernels)
    last = len(agents) - 1
    for name in names:
        other = agents[last].clone()
        setattr(other, name, getattr(other, name) * SHRINK)
        results = alone(other, last, batches, agents)
        pairs = [(a.priorities, b.priorities) for a, b in zip(results, results_alone[last], strict=True) if a and b]
        apart = [float((a - b).abs().max()) for a, b in pairs if a is not None and b is not None]
        assert max([moved(other, expected, last), *apart]) > 1e-8, f"{name} makes no difference to these updates"


def assert_together_as_alone(
    agents: Sequence[Any],
    batches: TransitionBatches,
    kernels: Sequence[Kernels],
    tolerance: float = TOLERANCE,
    idle: str = "",
) -> tuple[dict[str, Tensor], list[list[UpdateResult | None]]]:
    """Members as they are learn together what each learns alone; returns the state and the results alone."""
    references = [agent.clone() for agent in agents]
    results_alone = [alone(agent, member, batches, agents) for member, agent in enumerate(references)]
    expected = state(references)
    for backend in kernels:
        members = [agent.clone() for agent in agents]
        every = together(members, batches, backend)
        for member, results in enumerate(results_alone):
            assert_same_results(every, member, results, tolerance)
        assert_same_state(members, expected, backend.name, tolerance, idle)
    return expected, results_alone


def moved(agent: Any, expected: dict[str, Tensor], member: int) -> float:
    """How far an agent is from the expected state of a member."""
    pairs = [(value, expected[f"{member}{name[1:]}"]) for name, value in state([agent]).items()]
    return max(float((a - b).abs().max()) for a, b in pairs if a.numel())
