"""Updates stay on their device: on tensors without data, no algorithm's update mixes devices or reads a number back.

Reading a number of a `meta` tensor raises, as `item`, `tolist`, `numpy`, `cpu` and `bool` have to wait for the device.
Operations that mix devices are not all refused by torch's `meta` kernels; `OneDevice` refuses them.
"""

from __future__ import annotations

from typing import Any

import halves
import pytest
import team_halves
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agilerl.algorithms import find_algorithm
from agilerl.core.transfer import step_tensor
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.ranks import ONE

# Where agents may be absent, IPPO and MAPPO read once per minibatch which groups decided anything in it.
PRESENT = {f"{algo} all present": team_halves.Case(algo, absent=(), batch_size=8) for algo in ("IPPO", "MAPPO")}
TEAMS = {**team_halves.OFF_POLICY, **PRESENT}


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of several devices, and copies from one to another; scalars may be on the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, Tensor)]
        places = {x.device.type for x in given if x.dim()}
        result = func(*args, **(kwargs or {}))
        places |= {x.device.type for x in tree_leaves(result) if isinstance(x, Tensor) and x.dim() and given}
        assert len(places) < 2, f"{func} mixes {sorted(places)}"
        return result


def on_meta(agents: list[Any], batches: list[tuple[int, Any]]) -> int:
    """Run these updates of groups on agents whose tensors have no data; how many there were.

    Constants may be moved to the device once: all updates run twice.
    """
    learner = Learner(agents, choose(agents, "fused"))
    moved = [(number, batch.map(lambda x: x.to("meta"))) for number, batch in batches]
    for number, batch in moved:
        learner.learn(number, batch)
    with OneDevice():
        for number, batch in moved:
            learner.learn(number, batch)
    return len(moved)


def noted(monkeypatch: pytest.MonkeyPatch, run: Any) -> list[tuple[int, Any]]:
    """The updates that `run` makes on the CPU."""
    batches, learn = [], Learner.learn

    def note(self: Learner, group: int, batch: Any, live: Any = None) -> Any:
        batches.append((group, batch))
        return learn(self, group, batch, live)

    with monkeypatch.context() as patch:
        patch.setattr(Learner, "learn", note)
        run()
    return batches


@pytest.mark.parametrize("name", halves.CASES)
def test_updates_from_transitions_stay_on_their_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algo, space, more = halves.CASES[name]
    agents = halves.agents_of(algo, space, more)
    found = noted(monkeypatch, lambda: halves.learned(agents, "fused", halves.batches(agents, space), ONE))
    options = {"net_config": halves.NET, "device": "meta", **more}
    empty = [find_algorithm(algo)(halves.OBS, space, index=i, **options) for i in range(halves.MEMBERS)]
    assert on_meta(halves.doubled(empty), found) == halves.UPDATES


@pytest.mark.parametrize("name", halves.ROLLOUTS)
def test_updates_from_rollouts_stay_on_their_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, more = halves.ROLLOUTS[name]
    found = noted(monkeypatch, lambda: halves.rolled(halves.rollout_agents(space, more), "fused", space, ONE))
    assert on_meta(halves.rollout_agents(space, {**more, "device": "meta"}), found) >= 12


@pytest.mark.parametrize("name", TEAMS)
def test_updates_of_teams_stay_on_their_device(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = TEAMS[name]
    learned = team_halves.rolled if case.algo in ("IPPO", "MAPPO") else team_halves.replayed
    found = noted(monkeypatch, lambda: learned(case, "fused", ONE))
    empty = team_halves.Case(case.algo, {**case.options, "device": "meta"}, batch_size=case.batch_size)
    assert on_meta(team_halves.teams(empty), found) >= 4


def test_step_counts_lie_where_the_optimiser_needs_them() -> None:
    """Fused Adam reads its step count on the device of the parameter, where members go on after rows."""
    agents = [find_algorithm("DQN")(halves.OBS, halves.CHOICE, i, net_config=halves.NET, device="meta") for i in (0, 1)]
    Learner(agents, choose(agents, "fused"))
    for agent in agents:
        optimizer = agent.optimizer.optimizer
        assert optimizer.param_groups[0]["fused"]
        assert {state["step"].device.type for state in optimizer.state.values()} == {"meta"}
        assert len(optimizer.state) == len(list(agent.actor.parameters()))
    on_meta, on_cpu = torch.zeros(2, device="meta"), {"fused": None, "capturable": False}
    assert step_tensor(3.0, on_meta, on_cpu).device.type == "cpu"
    assert step_tensor(3.0, on_meta, {"capturable": True}).device.type == "meta"
    assert float(step_tensor(3.0, on_meta, {})) == 3.0


def test_a_mixed_operation_is_refused() -> None:
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.bmm(torch.zeros(1, 2, 2, device="meta"), torch.zeros(1, 2, 2))
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.ones(3).to("meta")
