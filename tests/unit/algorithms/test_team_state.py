"""MAPPO's values of the environment's `state()`, by name: `environment.with_state`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from team_games import Meeting
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms.mappo import MAPPO
from agilerl.config import apply_sets, preset_for
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import ConfigError, EnvError
from agilerl.utils.utils import make_multi_agent_vect_envs

SHORT: dict[str, Any] = {
    "population": 2, "steps": 96, "evo_steps": 48, "eval_episodes": 2, "confirm_episodes": 0, "num_envs": 2,
    "batch_size": 8, "learn_step": 24, "update_epochs": 1, "verbose": False, "device": "cpu", "seed": 3,
}  # fmt: skip


class Told(Meeting):
    """A meeting whose state is its age alone."""

    def state(self) -> np.ndarray:
        return np.array([self.age, 1.0], np.float32)


def test_values_read_the_state_where_the_environment_shows_it(tmp_path: Path) -> None:
    run = agilerl.train(Told, "MAPPO", out=tmp_path, with_state=True, **SHORT)
    assert run.manifest.environment.with_state
    for team in run.population:
        assert team.state_space.shape == (2,)
        assert getattr(team, "critics.mover").encoder.num_inputs == 2
    loaded = agilerl.load(run.path)
    assert [digest_tree(a.state()) for a in loaded.population] == [digest_tree(a.state()) for a in run.population]
    assert len(run.best.evaluate(env=Told(), episodes=2).returns) == 2
    again = agilerl.resume(run.path, steps=144, env=Told, verbose=False)
    assert again.history[:2] == run.history
    assert len(again.history) == 3
    handed = make_multi_agent_vect_envs(Told, 2, with_state=True)
    team = agilerl.train(handed, "MAPPO", out=None, **SHORT).best
    assert team.state_space.shape == (2,)


def test_the_command_line_shows_the_state(tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    from agilerl.cli.main import app

    given = ["training.pop_size=1", "training.max_steps=64", "training.evo_steps=64", "training.eval_episodes=1",
             "environment.with_state=true", "environment.num_envs=2", "algorithm.learn_step=32",
             "algorithm.batch_size=8", "training.confirm_episodes=0"]  # fmt: skip
    sets = [part for one in given for part in ("--set", one)]
    name = "mpe2.simple_speaker_listener_v4"
    done = CliRunner().invoke(app, ["train", name, "--algo", "MAPPO", "--out", str(tmp_path), *sets])
    assert done.exit_code == 0, done.output
    (path,) = tmp_path.rglob("run.json")
    assert agilerl.load(path.parent).population[0].state_space.shape == (14,)


def test_an_agent_acts_on_what_a_vector_shows() -> None:
    with make_multi_agent_vect_envs(Told, 2, with_state=True) as env:
        spaces = [{a: make(a) for a in env.agents} for make in (env.single_observation_space, env.single_action_space)]
        team = MAPPO(*spaces, state_space=env.team.state_space, seed=1)
        obs, infos = env.reset(seed=1)
        found = team.get_action(obs, infos, training=False)
        assert obs.state.tolist() == [[0, 1], [0, 1]]
        expected = team.get_action({**obs, "state": np.array([[0, 1], [0, 1]])}, infos, training=False)
        np.testing.assert_array_equal(found[3]["mover_0"], expected[3]["mover_0"])
        later = team.get_action({**obs, "state": np.array([[5, 1], [5, 1]])}, infos, training=False)
        assert not np.array_equal(found[3]["mover_0"], later[3]["mover_0"])
        assert set(env.step(found[0])[0]) == set(env.agents)


@pytest.mark.parametrize(
    ("algo", "env", "says", "kind"),
    [
        (
            "IPPO",
            Told,
            r"with_state=true .* which IPPO does not have. fix: algo='MAPPO', or leave environment.with_state out",
            ConfigError,
        ),
        ("MADDPG", Told, r"with_state=true .* which MADDPG does not have. fix: ", ConfigError),
        ("MAPPO", Meeting, r"has no state\(\), which with_state=True asks for. fix: ", EnvError),
        ("MAPPO", Told(), r"was handed over and shows no state. fix: .*with_state=True", ConfigError),
    ],
)
def test_a_state_that_nobody_reads_or_shows_is_a_mistake(algo: str, env: Any, says: str, kind: Any) -> None:
    with pytest.raises(kind, match=says):
        agilerl.train(env, algo, out=None, with_state=True, **{k: v for k, v in SHORT.items() if k != "update_epochs"})


def test_a_manifest_without_a_state_keeps_its_hash() -> None:
    manifest = preset_for("mpe2.simple_spread_v3", "MAPPO")
    assert apply_sets(manifest, ["environment.with_state=false"]).hash() == manifest.hash()
    assert apply_sets(manifest, ["environment.with_state=true"]).hash() != manifest.hash()
