"""Films of teams: every step of an episode, in an environment by its id and in one that is handed over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence
from team_games import Meeting
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import MADDPG
from agilerl.errors import EnvError
from agilerl.views.report.film import TeamCamera, play

IDS = Meeting.possible_agents
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 4}
SHORT: dict[str, Any] = {
    "population": 1, "steps": 48, "evo_steps": 48, "eval_episodes": 1, "confirm_episodes": 0, "num_envs": 2,
    "batch_size": 8, "verbose": False, "device": "cpu", "seed": 1,
}  # fmt: skip


class Drawn(Meeting):
    """With a picture of every step in its own grey."""

    metadata: dict[str, Any] = {"name": "drawn_v0", "render_fps": 20}  # noqa: RUF012
    closed_ones = 0

    def render(self) -> Any:
        return np.full((8, 12, 3), 30 * self.age, np.uint8)

    def close(self) -> None:
        Drawn.closed_ones += 1


def team() -> MADDPG:
    env = Meeting()
    both = [{a: make(a) for a in IDS} for make in (env.observation_space, env.action_space)]
    return MADDPG(*both, net_config=NET, seed=3)


def test_a_film_of_a_team_has_the_first_observation_and_every_step_of_every_episode() -> None:
    made, before = team(), Drawn.closed_ones
    found = play(made, "Drawn", env=Drawn(), episodes=2)
    assert [int(frame[0, 0, 0]) for frame in found.frames] == [0, 30, 60, 90, 120, 150, 180] * 2
    assert (found.fps, found.is_cut) == (20, False)
    assert made.evaluate(env=Drawn(), episodes=2).returns == found.returns
    assert Drawn.closed_ones == before + 1
    assert made.fitness == []


def test_a_film_that_is_full_cuts_the_episode_of_all_who_go_on() -> None:
    camera = TeamCamera(Drawn(), "Drawn", limit=3)
    env: Any = camera
    env.reset(seed=1)
    for _ in range(2):
        assert not any(env.step({"caller_0": 0, "mover_0": np.zeros(1)})[3].values())
    cuts = env.step({"caller_0": 0, "mover_0": np.zeros(1)})[3]
    assert cuts == dict.fromkeys(IDS, True)
    assert env.agents == []
    assert (len(camera.roll.frames), camera.roll.is_full) == (3, True)
    env.reset(seed=1)
    assert env.agents == IDS


def test_what_does_not_draw_is_named(tmp_path: Path) -> None:
    run = agilerl.train(Drawn, out=None, **SHORT)
    with pytest.raises(EnvError, match=r'Drawn.* gave pictures of shape \(\).*fix: .*render_mode="rgb_array"'):
        run.record(tmp_path / "film.gif", env=Undrawn())
    with Image.open(run.record(tmp_path / "film.gif", env=Drawn())) as image:
        assert (image.size, image.n_frames) == ((156, 104), 7), "a cell of the board is a square of 13 pixels"


class Undrawn(Drawn):
    def render(self) -> Any:
        return None


@pytest.mark.thorough
def test_a_run_by_its_id_is_filmed_by_the_command_line(tmp_path: Path) -> None:
    pytest.importorskip("mpe2")
    pytest.importorskip("pygame")
    from agilerl.cli.main import app

    name = "mpe2.simple_speaker_listener_v4"
    run = agilerl.train(name, out=tmp_path / "run", **SHORT)
    assert run.path is not None
    done = CliRunner().invoke(app, ["record", str(run.path), "--format", "gif", "--out", str(tmp_path / "film.gif")])
    assert done.exit_code == 0, done.output
    with Image.open(tmp_path / "film.gif") as image:
        shown = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert sum(shown) == 26 * min(shown), "of equal pictures in a row Pillow keeps one, for longer"
