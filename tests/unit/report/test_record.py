"""Films of an agent: which frames, in which file, without a display, and what is said where something is missing."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image

import agilerl
from agilerl.algorithms.dqn import DQN
from agilerl.errors import ConfigError, EnvError, RunError
from agilerl.views.report import film
from agilerl.views.report.film import Camera, halved, play, record, without_display

NET = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}


class Counter(gym.Env[np.ndarray, int]):
    """Episodes of four steps, each step with a picture in its own grey; reward 1."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 (Gymnasium's own form)
    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None, size: int = 16) -> None:
        self.render_mode, self.size, self.time = render_mode, size, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(2, np.float32), 1.0, self.time == 4, False, {}

    def render(self) -> Any:
        if self.render_mode is None:
            raise gym.error.ResetNeeded("no renderer")
        return np.full((self.size, 2 * self.size, 3), 40 * self.time, np.uint8)


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> DQN:
    monkeypatch.setitem(gym.registry, "Counter-v0", gym.envs.registration.EnvSpec("Counter-v0", entry_point=Counter))
    monkeypatch.setattr(film, "resolve_env_id", lambda name: name)
    return DQN(Counter.observation_space, Counter.action_space, net_config=NET, seed=3)


def test_a_film_has_the_first_observation_and_every_step_of_every_episode(agent: DQN) -> None:
    found = play(agent, "Counter-v0", episodes=2)
    assert [int(frame[0, 0, 0]) for frame in found.frames] == [0, 40, 80, 120, 160] * 2
    assert (found.fps, found.returns, found.is_cut) == (50, (4.0, 4.0), False)
    assert agent.fitness == []  # a film is no evaluation of the run


def test_an_episode_that_does_not_end_is_cut_when_the_film_is_full(agent: DQN) -> None:
    camera = Camera(Counter("rgb_array"), "Counter-v0", limit=3)
    assert agent.evaluate(episodes=1, env=camera).returns == (3.0,)
    assert (len(camera.roll.frames), camera.roll.is_full) == (3, True)


def test_pictures_are_halved_until_they_fit() -> None:
    picture = 2 * np.arange(5 * 4 * 3).reshape(5, 4, 3).astype(np.uint8)
    # The first is the mean of 0, 6, 24 and 30. The fifth row is left over.
    expected = [[[15, 17, 19], [27, 29, 31]], [[63, 65, 67], [75, 77, 79]]]
    assert halved(picture).tolist() == expected
    camera = Camera(Counter("rgb_array", size=40), "Counter-v0", widest=20)
    camera.reset()
    camera.step(0)
    assert camera.roll.frames[0].shape == (10, 20, 3)


@pytest.mark.parametrize(("kind", "format"), [("webp", "WEBP"), ("gif", "GIF")])
def test_pillow_writes_an_animation_at_the_environments_pace(
    agent: DQN, tmp_path: Path, kind: str, format: str
) -> None:
    path = record(agent, "Counter-v0", tmp_path / "deep" / "film", format=kind, episodes=2)
    assert path == tmp_path / "deep" / f"film.{kind}"
    with Image.open(path) as image:
        assert (image.format, image.size, image.n_frames) == (format, (32, 16), 5)  # 10 at 50 a second: every second
        image.load()
        assert image.info["duration"] == 40
    assert os.listdir(path.parent) == [path.name]


def test_a_film_goes_into_a_folder_and_keeps_its_format(agent: DQN, tmp_path: Path) -> None:
    folder = tmp_path / "films"
    folder.mkdir()
    assert record(agent, "Counter-v0", folder) == folder / "rollout.webp"
    assert record(agent, "Counter-v0", folder, format="gif") == folder / "rollout.gif"
    assert record(agent, "Counter-v0", tmp_path / "of.mine", format="gif") == tmp_path / "of.mine"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match=r"film\.webp is named as webp; got the format gif\. fix: .*film\.gif\."):
        record(agent, "Counter-v0", tmp_path / "film.webp", format="gif")
    assert sorted(tmp_path.rglob("*")) == before


def test_mp4_needs_an_extra_and_says_which(agent: DQN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[video\]"'):
        record(agent, "Counter-v0", tmp_path / "film.mp4")
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match=r'fix: pip install "agilerl\[render\]"'):
        record(agent, "Counter-v0", tmp_path / "film.gif")
    assert not list(tmp_path.iterdir())


def test_mp4_has_every_frame(agent: DQN, tmp_path: Path) -> None:
    ffmpeg = pytest.importorskip("imageio_ffmpeg")
    path = record(agent, "Counter-v0", tmp_path / "film.mp4", episodes=2)
    frames, seconds = ffmpeg.count_frames_and_secs(str(path))
    assert (frames, seconds) == (10, 0.2)


def test_what_cannot_be_filmed_is_named(agent: DQN, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"unknown film format 'avi'"):
        record(agent, "Counter-v0", tmp_path / "film.avi")
    with pytest.raises(
        EnvError, match=r"Counter-v0 cannot be drawn here: ResetNeeded: no renderer fix: export MUJOCO_GL"
    ):
        Camera(Counter(), "Counter-v0").reset()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot be written to .* fix: --out FILE"):
        record(agent, "Counter-v0", tmp_path / "file" / "film.webp")


def test_without_a_display_simulators_are_told_so_for_as_long_as_they_draw(
    agent: DQN, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_AUDIODRIVER", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)
    seen: dict[str, str] = {}
    monkeypatch.setattr(film, "resolve_env_id", lambda name: seen.update(os.environ) or name)
    play(agent, "Counter-v0")
    if sys.platform == "linux":
        assert (seen["SDL_VIDEODRIVER"], seen["MUJOCO_GL"]) == ("dummy", "egl")
        assert without_display({"MUJOCO_GL": "osmesa"}) == {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}
    assert "MUJOCO_GL" not in os.environ
    assert without_display({"DISPLAY": ":0"}) == {}


def test_an_environment_of_ones_own_is_filmed_where_it_is_given(agent: DQN, tmp_path: Path) -> None:
    best = agilerl.train(Counter, population=1, steps=64, out=None, verbose=False, evo_steps=64, eval_steps=4)
    with pytest.raises(RunError, match=r"handed over \(Counter\)\. fix: run\.record\(env=\.\.\.\)"):
        best.record(tmp_path / "film.gif")
    path = best.record(tmp_path / "film.gif", env=Counter("rgb_array", size=24))
    with Image.open(path) as image:
        assert image.n_frames == 3  # five at 50 a second
        assert image.size == (48, 24)


class Undrawn(gym.Env[Any, Any]):
    """Five steps, and nothing to look at."""

    observation_space, action_space = gym.spaces.Box(0, 9, (1,)), gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        return np.full(1, self.time, np.float32), 1.0, self.time >= 5, False, {}


class Human(Undrawn):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode


def test_an_environment_whose_constructor_raises_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(**kwargs: Any) -> Any:
        raise RuntimeError("no licence")

    monkeypatch.setitem(gym.registry, "Fails-v0", gym.envs.registration.EnvSpec("Fails-v0", entry_point=raises))
    agent = DQN(Undrawn.observation_space, Undrawn.action_space, net_config=NET)
    with pytest.raises(
        EnvError, match=r"^Fails-v0: gymnasium\.make\(\) raised RuntimeError: no licence\. fix: correct it"
    ):
        play(agent, "Fails-v0")


@pytest.mark.parametrize("cls", [Undrawn, Human])
def test_an_environment_without_pictures_is_named_with_what_to_add(cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gym.registry, "Undrawn-v0", gym.envs.registration.EnvSpec("Undrawn-v0", cls))
    agent = DQN(Undrawn.observation_space, Undrawn.action_space, net_config=NET)
    warnings.simplefilter("error")
    with pytest.raises(EnvError) as caught:
        play(agent, "Undrawn-v0")
    assert str(caught.value).startswith("Undrawn-v0 has no rgb_array rendering. fix: metadata = {'render_modes': [")
