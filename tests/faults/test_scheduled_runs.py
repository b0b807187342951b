"""One agent trained by the schedule of an evolved run becomes the winner, with any seed, also when it is stopped."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import agilerl
from agilerl.api import run_training
from agilerl.config import Manifest, apply_overrides
from agilerl.errors import ConfigError, RunError
from agilerl.views.report.schedule import WinnerSchedule, schedule_of, with_changes
from tests.faults.faulty_runs import StopAfter, digest, newest, resume

EVOLVED: dict[str, Any] = {
    "env": "CartPole-v1", "algo": "DQN", "preset": False, "population": 3, "steps": 640, "seed": 31, "num_envs": 2,
    "evo_steps": 80, "eval_episodes": 1, "confirm_episodes": 0, "target_score": None, "batch_size": 16,
    "learning_delay": 32, "network.latent_dim": 16, "network.encoder_config.hidden_size": [16],
    "network.head_config.hidden_size": [16], "no_mut": 0.0, "arch_mut": 0.45, "params_mut": 0.1, "rl_hp_mut": 0.35,
    "act_mut": 0.1, "mutation.rl_hp_selection": {
        "lr": {"min": 1e-5, "max": 1e-2}, "batch_size": {"min": 8, "max": 64}, "gamma": {"min": 0.9, "max": 0.999},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def schedule(tmp_path_factory: pytest.TempPathFactory) -> tuple[WinnerSchedule, Path]:
    """Of a run whose winner has changed its hyperparameters and its network, and the file."""
    folder = tmp_path_factory.mktemp("evolved")
    found = schedule_of(agilerl.train(**EVOLVED, out=folder, verbose=False).path)
    assert {change["kind"] for change in found.changes} >= {"rl_hp", "architecture"}
    assert len(found.changes) >= 3
    return found, found.write(folder / "schedule.yaml")


def same(agent: Any, schedule: WinnerSchedule) -> bool:
    values = {name: value for name, value in agent.hyperparameters().items() if name in schedule.final.hyperparameters}
    assert values == schedule.final.hyperparameters
    assert agent.actor.describe() == schedule.final.network
    assert agent.actor_target.describe() == schedule.final.network
    activations = [change["after"] for change in schedule.changes if change["kind"] == "activation"]
    return agent.actor.activation == (activations or ["ReLU"])[-1]


@pytest.mark.parametrize("seed", [0, 11])
def test_one_agent_becomes_the_winner_at_the_recorded_steps(
    schedule: tuple[WinnerSchedule, Path], seed: int, tmp_path: Path
) -> None:
    found, file = schedule
    run = agilerl.train(None, schedule=file, seed=seed, out=tmp_path, verbose=False)
    (agent,) = run.population
    assert same(agent, found)
    assert run.result["env_steps_member"] == found.env_steps
    assert run.result["stopped"] == "budget"
    assert run.manifest.training.seed == seed
    births = [birth for birth in run.lineage if birth.kind != "founder"]
    assert [birth.generation for birth in births] == [change["env_steps"] // 80 for change in found.changes]
    recorded = [(change["kind"], change["path"], change["after"]) for change in found.changes]
    assert [(birth.kind, birth.path, birth.after) for birth in births] == recorded


def test_a_run_that_was_stopped_twice_ends_as_if_it_had_not(
    schedule: tuple[WinnerSchedule, Path], tmp_path: Path
) -> None:
    case = {"env": None, "schedule": schedule[1], "seed": 5, "verbose": False}
    whole = agilerl.train(**case, out=tmp_path / "whole").path
    stopped = agilerl.train(**case, out=tmp_path / "stopped", sinks=[StopAfter(2)]).path
    assert resume(stopped, sinks=[StopAfter(2)]) == []
    assert newest(stopped).number == 4
    assert resume(stopped) == []
    assert digest(stopped) == digest(whole)
    assert (stopped / "metrics.csv").read_text().count("\n") == (whole / "metrics.csv").read_text().count("\n")


def test_a_resume_needs_no_file_and_repeats_a_run_without_checkpoints(
    schedule: tuple[WinnerSchedule, Path], tmp_path: Path
) -> None:
    file = shutil.copy(schedule[1], tmp_path / "copy.yaml")
    case = {"env": None, "schedule": file, "seed": 5, "verbose": False}
    whole = agilerl.train(**case, out=tmp_path / "whole").path
    killed = agilerl.train(**case, out=tmp_path / "killed", sinks=[StopAfter(1)]).path
    Path(file).unlink()
    shutil.rmtree(killed / "checkpoints")  # as if it had been killed before the first one
    resume(killed)
    assert digest(killed) == digest(whole)


def constants(found: WinnerSchedule) -> Manifest:
    """Settings of one agent with the final hyperparameters and network from the start."""
    return with_changes(found.manifest, [{**change, "env_steps": 0} for change in found.changes])


def test_final_constants_hold_from_the_start_in_fresh_networks(schedule: tuple[WinnerSchedule, Path]) -> None:
    found, _ = schedule
    runs = [
        run_training(apply_overrides(constants(found), {"training.seed": seed, "training.max_steps": 80}), out=None,
                     verbose=False)
        for seed in (1, 1, 2)
    ]  # fmt: skip
    agents = [run.population[0] for run in runs]
    assert all(same(agent, found) for agent in agents)
    assert [len(run.lineage) for run in runs] == [1, 1, 1]  # founders alone
    weights = [agent.actor.state_dict() for agent in agents]
    assert all((weights[0][name] == weights[1][name]).all() for name in weights[0])
    assert any((weights[0][name] != weights[2][name]).any() for name in weights[0])


def test_the_founder_stays_as_it_was(schedule: tuple[WinnerSchedule, Path]) -> None:
    found, _ = schedule
    run = run_training(apply_overrides(with_changes(found.manifest, []), {"training.seed": 1}), out=None, verbose=False)
    (agent,) = run.population
    assert agent.actor.describe() == found.founder.network == "[16] 16 [16]"
    assert {k: v for k, v in agent.hyperparameters().items() if k in found.founder.hyperparameters} == (
        found.founder.hyperparameters
    )
    assert run.result["env_steps_member"] == found.env_steps


def test_other_budgets_leave_the_steps_of_the_changes(schedule: tuple[WinnerSchedule, Path]) -> None:
    found, file = schedule
    shorter = agilerl.train(None, schedule=file, steps=160, out=None, verbose=False)
    assert shorter.result["env_steps_member"] == 160
    assert shorter.manifest.training.max_steps == found.manifest.training.max_steps
    longer = agilerl.train(None, schedule=file, steps=found.env_steps + 80, out=None, verbose=False)
    assert longer.result["env_steps_member"] == found.env_steps + 80
    assert longer.manifest.evolution.schedule == found.scheduled().evolution.schedule


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algo": "PPO"}, r"the schedule is one of DQN; got algo='PPO'"),
        ({"minutes": 1.0}, r"budget in steps of its own; got minutes too"),
        ({"evolution": False}, r"got evolution=False too. fix: leave evolution out"),
        ({"population": 4}, r"the evolution of one agent; got training.pop_size=4"),
    ],
)
def test_arguments_that_contradict_a_schedule_are_named(
    schedule: tuple[WinnerSchedule, Path], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        agilerl.train(None, schedule=schedule[1], out=None, verbose=False, **arguments)


def test_a_scheduled_run_has_no_schedule_of_its_own(schedule: tuple[WinnerSchedule, Path], tmp_path: Path) -> None:
    run = agilerl.train(None, schedule=schedule[1], steps=80, out=tmp_path, verbose=False)
    with pytest.raises(RunError, match=r"was trained by a schedule itself. fix: `agilerl train --config"):
        schedule_of(run.path)


CASES: dict[str, dict[str, Any]] = {
    # The algorithm moves its learning rate itself, which the schedule leaves to it.
    "PPO": {"algo": "PPO", "learn_step": 32, "steps": 480, "seed": 17, "act_mut": 0.0},
    # The winner's founder is one of those with other widths.
    "SAC": {
        "env": "Pendulum-v1", "algo": "SAC", "seed": 14, "steps": 400, "act_mut": 0.0, "eval_members": None,
        "evolution.widths": [24, 32], "mutation.rl_hp_selection": {"lr_actor": {"min": 1e-5, "max": 1e-2}},
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_critics_follow_as_they_did_in_the_winner(name: str, tmp_path: Path) -> None:
    """All networks have the shapes of the winner's, those of the critics too, which the record does not hold."""
    case = {**EVOLVED, **CASES[name]}
    if name == "PPO":
        del case["learning_delay"]  # of replay
    evolved = agilerl.train(**case, out=tmp_path, verbose=False)
    found = schedule_of(evolved.path)
    assert sum(change["kind"] == "architecture" for change in found.changes) >= 2
    assert found.adapted == (("lr",) if name == "PPO" else ())
    (winner,) = (agent for agent in evolved.population if agent.index == found.source["member"])
    for manifest in (found.scheduled(), constants(found)):
        run = run_training(apply_overrides(manifest, {"training.seed": 9}), out=None, verbose=False)
        (agent,) = run.population
        assert agent.actor.describe() == found.final.network
        assert shapes(agent) == shapes(winner)
        left = [name for name in found.final.hyperparameters if name not in found.adapted]
        assert [vars(agent)[name] for name in left] == [found.final.hyperparameters[name] for name in left]


def shapes(agent: Any) -> dict[str, Any]:
    networks = agent.evolvable_attributes(networks_only=True)
    return {name: {key: value.shape for key, value in net.state_dict().items()} for name, net in networks.items()}
