"""What `print` says of a run, an agent, a population, a buffer; and a run as a plot, a frame, a notebook's cell."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from synthetic_runs import birth, member, write_run

from agilerl import errors
from agilerl.algorithms import DQN, SAC
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.components.rollout_buffer import RolloutBuffer
from agilerl.config import preset_for
from agilerl.core.spaces import short_form
from agilerl.errors import ConfigError, RunError
from agilerl.training.run import Run
from agilerl.utils.utils import create_population
from agilerl.views.report import RunRecords
from agilerl.wrappers.agent import RSNorm

VECTORS, CHOICES = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(2)
NET: dict[str, Any] = {"latent_dim": 8, "encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [8]}}


def run_of(path: Path | None, **more: Any) -> Run:
    result = {
        "stopped": "target", "best_fitness": 12.5, "env_steps_population": 8000, "env_steps_member": 2000,
        "evaluation_env_steps": 21000, "seconds": 75.0,
    }  # fmt: skip
    history = [[1.0, float("nan")], [12.5, 3.0]]
    values = {"best": None, "population": [None] * 4, "history": history, "lineage": [], "path": path, "result": result}
    return Run(**{**values, "manifest": preset_for("CartPole-v1"), **more})


def test_a_run_is_four_lines() -> None:
    assert str(run_of(None)).splitlines() == [
        "DQN on CartPole-v1   ended by target   4 members, 2 generations, seed 0",
        "best   fitness 12.5   (no final evaluation; run.best.evaluate() makes one)",
        "cost   8k env steps (2k per member), 21k for evaluation   01:15",
        "path   nothing was written (out=None)",
    ]


def test_a_run_knows_the_final_evaluation_that_was_made_after_it(tmp_path: Path) -> None:
    rows = [member(0, 0, 0, 12.5, is_best=1)]
    path = write_run(tmp_path / "r", rows, [birth(0, None, 0, "founder")], returns=[10.0, 20.0])
    assert str(run_of(path)).splitlines()[1] == (
        "best   mean 15.0, 95% CI 10.0..20.0 over 2 fresh episodes   (fitness 12.5 in the run)"
    )
    assert "interrupted" in str(run_of(path, interrupted=True))


def test_an_agent_says_what_it_is_sees_and_does_and_a_list_shows_each_in_one_line() -> None:
    agent = DQN(VECTORS, CHOICES, index=3, net_config=NET, lr=6.3e-4, batch_size=32, gamma=0.98, tau=0.01)
    agent.fitness, agent.steps = [20.0, 143.2, 88.0], [12_000]
    size = sum(parameter.numel() for parameter in agent.actor.parameters())
    assert str(agent).splitlines() == [
        "DQN, member 3, on cpu",
        "spaces    Box(4,) -> Discrete(2)",
        "settings  lr 6.3e-4, gamma 0.98, tau 0.01",
        f"network   actor [16] 8 [8] ({size:,} parameters)",
        "fitness   88, best 143.2 of 3 evaluations",
        "trained   12,000 env steps",
    ]
    assert str([agent]) == "[DQN(member 3, fitness 88, lr 6.3e-4, gamma 0.98, tau 0.01)]"
    assert str(RSNorm(agent)).startswith("RSNorm around DQN, member 3")
    assert repr(RSNorm(agent)).startswith("RSNorm(DQN(member 3, fitness 88")


def test_a_population_and_an_agent_in_the_making_can_be_printed() -> None:
    population = create_population("DQN", NET, {}, VECTORS, CHOICES, population_size=2, seed=1)
    assert str(population).count("DQN(member ") == 2
    assert repr(SAC.__new__(SAC)).startswith("<agilerl.algorithms.sac.SAC object at")
    assert str(SAC.__new__(SAC)).startswith("<agilerl.algorithms.sac.SAC object at")
    continuous = SAC(VECTORS, gym.spaces.Box(-1, 1, (2,), np.float32), net_config=NET)
    assert [line.split()[1] for line in str(continuous).splitlines() if line.startswith("network")] == [
        "actor", "critic_1", "critic_2", "temperature",
    ]  # fmt: skip


def test_a_buffer_says_how_full_it_is_and_what_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())  # the warning below comes once per process
    names = ["obs", "action", "reward", "next_obs", "done"]
    with pytest.deprecated_call():
        memory = ReplayBuffer(memory_size=1000, field_names=names)
    assert str(memory).splitlines()[1] == "  fields: not known before the first rows"
    obs = torch.zeros(3, 4)
    memory.save_to_memory(
        obs, torch.zeros(3, dtype=torch.int64), torch.zeros(3), obs, torch.zeros(3), is_vectorised=True
    )
    first, second = str(memory).splitlines()
    assert first.startswith("ReplayBuffer: 3 of 1,000 transitions, 0.")
    assert first.endswith(" MB on cpu")
    assert "obs [4]" in second
    rollouts = RolloutBuffer(128, VECTORS, CHOICES, 8)
    assert str(rollouts) == (
        "RolloutBuffer: 0 of 128 vector steps x 8 lanes, 0.0 MB\n  fields: not known before the first step"
    )


def test_spaces_are_short_without_their_bounds() -> None:
    nested = gym.spaces.Dict(image=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8), speed=VECTORS)
    assert short_form(nested) == "Dict(image: Box(8, 8, 3), speed: Box(4,))"
    assert short_form(CHOICES) == "Discrete(2)"


def test_a_notebook_shows_the_facts_and_the_fitness() -> None:
    html = run_of(None)._repr_html_()
    assert "DQN on CartPole-v1   ended by target" in html
    assert "<script" not in html
    drawing = html[html.index("<svg") : html.index("</svg>") + 6]
    titles = [element.text for element in ElementTree.fromstring(drawing).iter("title")]
    assert titles == ["generation 1: best 1 (member 0), mean 1", "generation 2: best 12.5 (member 0), mean 7.75"]


def test_plots_and_frames_name_what_they_need(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[plots\]"'):
        run_of(tmp_path).plot()
    with pytest.raises(ConfigError, match=r"run\.frame\(\) needs pandas\. fix: pip install pandas"):
        run_of(tmp_path).frame()
    with pytest.raises(RunError, match=r"run\.report\(\) reads the run's directory"):
        run_of(None).report()


def test_a_plot_has_every_member_the_best_and_the_target(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    figure = run_of(None).plot(tmp_path / "fitness.png")
    (axes,) = figure.axes
    labels = {text.get_label(): text for text in axes.get_lines()}
    assert labels["best of each generation"].get_ydata().tolist() == [1.0, 12.5]
    assert "target 475" in labels
    assert (tmp_path / "fitness.png").read_bytes()[:4] == b"\x89PNG"


def test_a_frame_has_a_row_for_every_member_and_generation(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    path = write_run(tmp_path / "r", [member(0, 0, 0, 1.0), member(0, 1, 1, 2.0, **{"hp.lr": 5e-4})], [])
    frame = run_of(path).frame()
    assert frame["fitness"].tolist() == [1.0, 2.0]
    assert frame["hp.lr"].tolist() == [1e-3, 5e-4]


def test_the_report_of_a_run_is_that_of_its_directory(tmp_path: Path) -> None:
    path = write_run(tmp_path / "r", [member(0, 0, 0, 1.0, is_best=1)], [birth(0, None, 0, "founder")])
    assert run_of(path).report() == path / "report.html"
    assert RunRecords.read(path).winner_line == (0,)
    assert run_of(path).report(tmp_path / "other.html").is_file()
