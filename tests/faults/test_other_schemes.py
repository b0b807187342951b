"""Other schemes than tournaments in whole runs: the budget, the record, and resume to equal digests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import agilerl
from agilerl.cli.main import app
from tests.faults.faulty_runs import StopAfter, digest, newest, resume, train, train_part

SMALL = {"encoder_config.hidden_size": [8], "head_config.hidden_size": [8], "latent_dim": 8}
RANGES = {"lr": {"min": 1e-5, "max": 1e-2}, "gamma": {"min": 0.9, "max": 0.999}}
CASE: dict[str, Any] = {
    "env": "CartPole-v1",
    "algo": "PPO",
    "preset": False,
    "population": 4,
    "steps": 1024,
    "seed": 3,
    "target_score": None,
    "num_envs": 4,
    "learn_step": 64,
    "evo_steps": 128,
    "eval_episodes": 1,
    "confirm_episodes": 2,
    "mutation.rl_hp_selection": RANGES,
    **{f"network.{name}": value for name, value in SMALL.items()},
}
HALVING = {**CASE, "scheme": "halving"}
RACE = {**CASE, "scheme": "race", "certainty": 0.5, "eval_members": 2}
BANDIT = {**CASE, "scheme": "pb2", "training.evolve_from": 0.0}
FREQUENCIES = {**CASE, "scheme": "mf_pbt", "frequencies": [1, 3], "population": 8, "training.evolve_from": 0.0}
RESTARTS = {**RACE, "target_score": 1e6, "patience": 1, "restarts": True, "steps": 2048}
# Nobody's fitness can exceed 20; with this seed the first generation has less, so that there is something to gain, and
# training returns rise for seven generations longer.
PATIENT = {**RACE, "steps": 2048, "patience": 3, "seed": 18, "eval_steps": 20, "widths": None}
SAC = {
    **HALVING,
    "env": "Pendulum-v1",
    "algo": "SAC",
    "learn_step": 8,
    "learning_delay": 64,
    "random_steps": 64,
    "mutation.rl_hp_selection": {"lr_actor": RANGES["lr"]},
}


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "evolution.jsonl").read_text().splitlines()]


CASES = {
    "race": RACE, "restarts": RESTARTS, "patient": PATIENT, "replay": SAC, "halving": HALVING, "pb2": BANDIT,
    "mf_pbt": FREQUENCIES,
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The run of a case that was never stopped; to be copied by who goes on with it."""
    known: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in known:
            known[name] = train(CASES[name], tmp_path_factory.mktemp("whole"))
        return known[name]

    return of


# Every scheme is stopped in each generation in `test_schemes_and_events`, in shorter runs.
@pytest.mark.parametrize(
    "name",
    [
        *("race", "restarts", "patient", "replay"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("halving", "pb2", "mf_pbt")),
    ],
)
def test_a_run_that_was_stopped_twice_ends_as_if_it_had_not(
    name: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    stopped = train_part(CASES[name], tmp_path, 2)
    assert resume(stopped, sinks=[StopAfter(3)]) == []
    assert newest(stopped).number == 5
    assert resume(stopped) == []
    assert digest(stopped) == digest(whole(name))


def test_members_that_end_leave_their_steps_to_the_others() -> None:
    """4 x 1,024 steps in three rungs of 1,365: the last member alone makes the rest of them."""
    made: list[tuple[int, int, int, int]] = []
    arguments = {name: value for name, value in HALVING.items() if name != "learn_step"}
    run = agilerl.train(
        **arguments,
        learn_step=32,
        out=None,
        verbose=False,
        callbacks=[lambda r: made.append((len(r.members), r.going_on, r.population_env_steps, r.max_env_steps))],
    )
    assert [members for members, *_ in made] == sorted((members for members, *_ in made), reverse=True)
    assert made[0][:2] == (4, 4)
    assert len(run.population) == 1
    assert run.result["env_steps_population"] == 4 * 1024
    assert made[-1][3] == run.result["env_steps_member"]
    assert sum(going != members for members, going, *_ in made) == 2, "two rungs"


def test_founders_differ_but_the_first_is_as_configured(tmp_path: Path) -> None:
    run = agilerl.train(**{**RACE, "steps": 128, "founders": "spread", "lr": 3e-4}, out=None, verbose=False)
    assert [birth.kind for birth in run.lineage] == ["founder"] * 4
    rates = [agent.lr for agent in run.population]
    assert len(set(rates)) == 4
    equal = agilerl.train(
        **{**RACE, "steps": 128, "founders": "equal", "lr_schedule": "constant"}, out=None, verbose=False
    )
    assert len({agent.lr for agent in equal.population}) == 1


@pytest.mark.parametrize(("widths", "units"), [([16, 32], [16, 16]), ([2, 4], [4, 4]), ([4, 32], [8, 12])])
def test_founders_within_widths_are_those_of_populations_of_these_widths(widths: list[int], units: list[int]) -> None:
    def founders(**settings: Any) -> list[Any]:
        case = {**SAC, "steps": 128, "scheme": "race", "learning_delay": 10_000, **settings}
        return list(agilerl.train(**case, out=None, verbose=False).population)

    def network(latent: int, hidden: int) -> dict[str, Any]:
        given = {"latent_dim": latent, "min_latent_dim": 4}
        for part in ("encoder_config", "head_config"):
            given |= {f"{part}.hidden_size": [hidden], f"{part}.min_mlp_nodes": 4}
        return {f"network.{name}": value for name, value in given.items()}

    found = founders(widths=widths, **network(8, 12))
    configured, within = founders(widths=None, **network(8, 12)), founders(widths=None, **network(*units))
    for agent, same in zip(found, [configured[0], *within[1:]], strict=True):  # nothing is learned so early
        assert agent.actor.latent_dim == same.actor.latent_dim
        others = same.actor.state_dict()
        assert all(torch.equal(value, others[name]) for name, value in agent.actor.state_dict().items())
        assert (agent.lr_actor, agent.gamma) == (same.lr_actor, same.gamma)


def test_the_bare_command_gives_wide_layers_to_all_but_the_first_founder() -> None:
    narrow = {f"network.{part}.{key}": value for part in ("encoder_config", "head_config")
              for key, value in (("hidden_size", [8]), ("min_mlp_nodes", 8))}  # fmt: skip
    small = {"steps": 64, "evo_steps": 64, "evo_first": None, "learn_step": 64, "eval_episodes": 1, "eval_screen": 0}
    for given, units in (({**narrow, "network.latent_dim": 8}, [8, 64, 64, 64]), ({}, [64] * 4)):
        run = agilerl.train(
            "CartPole-v1", preset=False, seed=1, evolution=False, out=None, verbose=False, **small, **given
        )
        assert [agent.actor.latent_dim for agent in run.population] == units
        assert [agent.critic.latent_dim for agent in run.population] == units


def test_a_run_that_begins_anew_says_so_and_keeps_its_budget(whole: Callable[[str], Path]) -> None:
    path = whole("restarts")
    anew = [birth for birth in records(path) if birth["path"] == "restart"]
    assert len(anew) % 4 == 0
    assert len(anew) >= 4
    assert all(birth["kind"] == "founder" for birth in anew)
    assert len({birth["id"] for birth in records(path)}) == len(records(path)), "no id twice"
    page = (path / "report.html").read_text()
    assert "by who trained longest" in page
    assert "per member" not in page, "nobody's share is its own"
    facts = json.loads((path / "run.json").read_text())
    assert 4 * 2048 <= facts["result"]["env_steps_population"] < 4 * 2048 + 4 * 128


def test_a_run_on_a_plateau_ends_and_goes_on_where_it_is_asked_to(whole: Callable[[str], Path], tmp_path: Path) -> None:
    path = shutil.copytree(whole("patient"), tmp_path / "patient")
    facts = json.loads((path / "run.json").read_text())
    assert facts["result"]["stopped"] == "plateau"
    assert facts["result"]["env_steps_population"] < 4 * 2048
    assert facts["result"]["confirmed"] is not None
    resume(path)
    assert json.loads((path / "run.json").read_text())["result"]["generations"] == facts["result"]["generations"]
    done = CliRunner().invoke(
        app, ["resume", str(path), "--set", "training.patience=null", "--quiet", "--test-episodes", "0"]
    )
    assert done.exit_code == 0, done.output
    after = json.loads((path / "run.json").read_text())["result"]
    assert (after["stopped"], after["generations"] > facts["result"]["generations"]) == ("budget", True)
