"""Updates on a CUDA GPU give the weights that they give on the CPU, in float64; skipped where there is no GPU.

`test_one_device.py` shows without a GPU that updates mix no devices; this shows that they compute the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import halves
import pytest
import team_halves
import torch
from test_one_device import noted
from torch import Tensor

from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.team_sequences import TeamSequences
from agilerl.language.base import load_base
from agilerl.language.networks import AdapterNetwork
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.ranks import ONE

TOLERANCE = 1e-9  # of weights after 4 to 24 updates in float64, whose sums are taken in another order
TEAMS = {**team_halves.OFF_POLICY, **team_halves.ON_POLICY}
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA GPU")


def moved(batch: Any, device: str) -> Any:
    """Copy a batch to a device; one of recurrent teams is a batch per group of agents."""
    if isinstance(batch, TeamSequences):
        return TeamSequences({name: moved(part, device) for name, part in batch.groups.items()}, batch.live)
    return batch.map(lambda x: x.to(device))


def weights_after(agents: list[Any], batches: list[tuple[int, Any]], how: str, device: str) -> list[Tensor]:
    """Return all weights, on the CPU, after these updates of groups on `device`."""
    learner = Learner(agents, choose(agents, how))
    for group, batch in batches:
        learner.learn(group, moved(batch, device))
    learner.release()
    return [weight.cpu() for weight in team_halves.weights(agents)]


def from_transitions(name: str, device: str) -> list[Any]:
    algo, space, options = halves.CASES[name]
    return halves.agents_of(algo, space, {**options, "device": device})


def of_team(name: str, device: str) -> list[Any]:
    case = TEAMS[name]
    options = {**case.options, "device": device}
    return team_halves.teams(team_halves.Case(case.algo, options, case.absent, case.waiting, case.batch_size))


def check(make: Any, batches: list[tuple[int, Any]], how: str) -> None:
    """Compare the weights on both devices; updates that change nothing would show nothing."""
    before = team_halves.weights(make("cpu"))
    on_cpu, on_gpu = (weights_after(make(device), batches, how, device) for device in ("cpu", "cuda"))
    assert halves.difference(before, on_cpu) > 1e-4
    assert halves.difference(on_cpu, on_gpu) < TOLERANCE


@needs_gpu
@pytest.mark.parametrize("how", ["fused", "sequential"])
@pytest.mark.parametrize("name", halves.CASES)
def test_transitions_teach_the_same_on_both_devices(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, agents = halves.CASES[name][1], from_transitions(name, "cpu")
    made = noted(monkeypatch, lambda: halves.learned(agents, "fused", halves.batches(agents, space), ONE))
    check(lambda device: from_transitions(name, device), made, how)


@needs_gpu
@pytest.mark.parametrize("name", halves.ROLLOUTS)
def test_rollouts_teach_the_same_on_both_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, options = halves.ROLLOUTS[name]
    agents = halves.rollout_agents(space, options)
    made = noted(monkeypatch, lambda: halves.rolled(agents, "fused", space, ONE))
    check(lambda device: halves.rollout_agents(space, {**options, "device": device}), made, "fused")


@needs_gpu
@pytest.mark.parametrize("name", TEAMS)
def test_teams_learn_the_same_on_both_devices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = team_halves.rolled if TEAMS[name].algo in ("IPPO", "MAPPO") else team_halves.replayed
    made = noted(monkeypatch, lambda: learned(TEAMS[name], "fused", ONE))
    check(lambda device: of_team(name, device), made, "fused")


@needs_gpu
@pytest.mark.parametrize("name", ["DQN", "SAC", "BC"])
def test_members_go_on_with_their_modules_after_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, agents = halves.CASES[name][1], from_transitions(name, "cpu")
    made = noted(monkeypatch, lambda: halves.learned(agents, "fused", halves.batches(agents, space), ONE))
    ends = []
    for device in ("cpu", "cuda"):
        members = from_transitions(name, device)
        weights_after(members, made[:2], "fused", device)
        weights_after(members, made[2:4], "sequential", device)
        ends.append(weights_after(members, made[4:], "fused", device))
    assert halves.difference(*ends) < TOLERANCE


@needs_gpu
def test_adapters_of_a_language_model_begin_alike_on_both_devices(tmp_path: Path) -> None:
    tiny_base(tmp_path, tiny_tokenizer("0123456789+= "))
    on_cpu, on_gpu = (AdapterNetwork(load_base(tmp_path, torch.float32, x), random_seed=3) for x in ("cpu", "cuda"))
    pairs = list(zip(on_cpu.parameters(), on_gpu.parameters(), strict=True))
    assert any(bool(a.any()) for a, _ in pairs)
    assert all(torch.equal(a, b.cpu()) for a, b in pairs)


@needs_gpu
@pytest.mark.parametrize("name", halves.CASES)
def test_equal_updates_give_equal_bits_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    space, agents = halves.CASES[name][1], from_transitions(name, "cpu")
    made = noted(monkeypatch, lambda: halves.learned(agents, "fused", halves.batches(agents, space), ONE))
    first, *others = (weights_after(from_transitions(name, "cuda"), made, "fused", "cuda") for _ in range(4))
    assert all(torch.equal(a, b) for again in others for a, b in zip(first, again, strict=True))
