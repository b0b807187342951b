"""Videos of an agent: episodes rendered without a display, written as WebP, GIF or MP4."""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium
import numpy as np

from agilerl.core import foreign
from agilerl.core.env_ids import resolve_env_id
from agilerl.core.tree import Tree
from agilerl.envs.lanes import failure_of_make
from agilerl.envs.limits import TimeLimitOfTeam
from agilerl.envs.team_ids import maker
from agilerl.envs.teams import TeamLanes
from agilerl.errors import ConfigError, EnvError, RunError, unknown_choice

FORMATS = ("webp", "gif", "mp4")
FRAMES = 1500  # maximum per film, which also limits endless episodes
WIDEST, WIDEST_MP4 = 320, 640  # pixels; larger pictures are halved until they fit
CELLS, ENLARGED = 16, 160  # pictures below 16 pixels have a pixel per board cell and are enlarged to about 160
DEFAULT_FPS, SHOWN_FPS = 30.0, 25
MIN_FPS = 0.1  # a picture for ten seconds; GIF has no delay above eleven minutes
NO_PICTURES = (
    "has no rgb_array rendering. fix: metadata = {'render_modes': ['rgb_array']}, __init__(self, render_mode=None), "
    "and render() that returns an [H, W, 3] array."
)


@dataclass(frozen=True)
class Film:
    """Recorded episodes.

    Attributes:
        frames: [H, W, 3] uint8 each. fps: frames per second, from the environment. returns: one per episode.
        is_cut: whether the last episode was cut off at `FRAMES`.
    """

    frames: list[np.ndarray]
    fps: float
    returns: tuple[float, ...]
    is_cut: bool


def record(
    agent: foreign.Agent,
    env_id: str,
    out: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    env: foreign.Env | None = None,
    format: str | None = None,
    episodes: int = 1,
    seed: int | None = None,
) -> Path:
    """Play episodes greedily, write them to `out` and return its path.

    Args:
        out: the file, or an existing folder, which gets `rollout.webp`.
        env: a custom environment, made with render_mode="rgb_array", instead of `env_id`; closed here.
        format: "webp", "gif" or "mp4"; None: by the suffix of `out`.
        seed: of the episodes; None: the agent's final-test stream, as in `agent.evaluate`.

    Raises:
        ConfigError: an unknown format, another one than that of the suffix, or a missing package for it.
        EnvError: the environment cannot be rendered. RunError: the file cannot be written.
    """
    path = Path(out)
    if path.is_dir():
        path /= f"rollout.{format or 'webp'}"
    suffix = path.suffix.removeprefix(".").lower()
    kind = (format or suffix or "webp").lower()
    if kind not in FORMATS:
        raise ConfigError(unknown_choice("film format", kind, FORMATS))
    if suffix in FORMATS and suffix != kind:
        raise ConfigError(f"{path} is named as {suffix}; got the format {kind}. fix: {path.with_suffix(f'.{kind}')}.")
    if not path.suffix:
        path = path.with_suffix(f".{kind}")
    writer = _writer(kind)  # before anything is played
    widest = WIDEST_MP4 if kind == "mp4" else WIDEST
    film = play(agent, env_id, kwargs=kwargs, env=env, episodes=episodes, seed=seed, widest=widest)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.tmp.{kind}")
        try:
            writer(unfinished, film)
            os.replace(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"the film cannot be written to {path} ({error}). fix: --out FILE.") from error
    return path


def without_display(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Environment variables that let simulators render without a display; existing ones are kept."""
    if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY") or sys.platform != "linux":
        return {}
    usual = {"SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy", "MUJOCO_GL": "egl"}
    return {name: value for name, value in usual.items() if name not in environment}


def play(
    agent: Any,
    env_id: str,
    *,
    kwargs: Mapping[str, Any] | None = None,
    env: foreign.EnvLike = None,
    episodes: int = 1,
    seed: int | None = None,
    widest: int = WIDEST,
) -> Film:
    """Play greedy episodes in one environment; a picture of every step, at most `widest` pixels wide and high.

    Raises:
        EnvError: the environment cannot be made or rendered.
    """
    with _variables(without_display()):  # read when a simulator is imported, which making one does
        if hasattr(agent, "agent_ids"):
            camera: Camera | TeamCamera
            place: Any
            camera, place = _team_camera(env, env_id, dict(kwargs or {}), widest)
        else:
            env = _made(env_id, kwargs) if env is None else env
            place = camera = Camera(env, env_id, widest)
        try:
            returns = agent.evaluate(episodes=episodes, seed=seed, env=place).returns
        finally:
            camera.close()
    roll = camera.roll
    return Film(roll.frames, roll.fps, tuple(returns), roll.is_full)


def _made(env_id: str, kwargs: Mapping[str, Any] | None) -> Any:
    name = resolve_env_id(env_id)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*not in the possible render_modes"
            )  # reported below if it matters
            return gymnasium.make(name, render_mode="rgb_array", disable_env_checker=True, **dict(kwargs or {}))
    except (gymnasium.error.Error, TypeError, ImportError) as error:
        raise _cannot_draw(name, error) from error
    except (Exception, SystemExit) as error:
        raise failure_of_make(error, name) from error


def _cannot_draw(name: str, error: Exception) -> EnvError:
    """The error for an environment that cannot be rendered."""
    text = " ".join(str(error).split())
    if isinstance(error, TypeError) and ("takes no arguments" in text or "'render_mode'" in text.partition(" was ")[0]):
        return EnvError(f"{name} {NO_PICTURES}")
    return EnvError(f"{name} cannot be drawn: {text} fix: a render_mode 'rgb_array', or what it names.")


def _team_camera(
    env: foreign.Env | None, env_id: str, kwargs: dict[str, Any], widest: int
) -> tuple[TeamCamera, TeamLanes]:
    """A camera on a multi-agent environment, and a single lane of it for the team."""
    with_state, steps = bool(kwargs.pop("with_state", False)), kwargs.pop("max_episode_steps", None)
    if env is None:
        try:
            env = maker(env_id)[1](render_mode="rgb_array", **kwargs)
        except (TypeError, ImportError, gymnasium.error.Error) as error:
            raise _cannot_draw(env_id, error) from error
    camera = TeamCamera(env if steps is None else TimeLimitOfTeam(env, steps), env_id, widest)
    return camera, TeamLanes([lambda: camera], with_state=with_state)


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside the block only."""
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)


class Roll:
    """The pictures of an environment's episodes.

    Attributes:
        frames: [H, W, 3] uint8 each. fps: from the environment. is_full: whether an episode was cut.
    """

    def __init__(self, env: Any, name: str, widest: int = WIDEST, limit: int = FRAMES) -> None:
        self.frames: list[np.ndarray] = []
        self.fps = frame_rate(foreign.metadata(env).get("render_fps"))
        self.is_full = False
        self._env, self._name, self._widest, self._limit = env, name, widest, limit
        self._first: np.ndarray | None = None

    def begin(self) -> None:
        """Begin an episode. Its first picture is added at its first step: lanes also reset after the last episode."""
        self._first = self._picture()

    def step(self, is_over: bool) -> bool:
        """Take a picture; True if the film is full and the episode must be cut."""
        if len(self.frames) >= self._limit:
            self.is_full = self.is_full or not is_over
            return True
        if self._first is not None:
            self.frames.append(self._first)
            self._first = None
        self.frames.append(self._picture())
        return False

    def _picture(self) -> np.ndarray:
        try:
            rendered = self._env.render()
        except NotImplementedError as error:
            raise EnvError(f"{self._name} {NO_PICTURES}") from error
        except Exception as error:  # a graphics library may raise anything
            text = " ".join(str(error).split())
            raise EnvError(
                f"{self._name} cannot be drawn here: {type(error).__name__}: {text} "
                "fix: export MUJOCO_GL=egl or osmesa for MuJoCo; pip install pygame-ce for the others."
            ) from error
        picture = np.asarray(rendered)
        if picture.ndim != 3 or picture.shape[-1] != 3:
            raise EnvError(
                f"{self._name}.render() gave pictures of shape {picture.shape}; expected [H, W, 3]. "
                'fix: make it with render_mode="rgb_array".'
            )
        if picture.dtype.kind == "f" and picture.max(initial=0) <= 1:  # shares of full brightness
            picture = (picture * 255).round()
        while max(picture.shape[:2]) > self._widest:
            picture = halved(picture)
        if 0 < max(picture.shape[:2]) < CELLS:
            times = ENLARGED // max(picture.shape[:2])
            picture = picture.repeat(times, axis=0).repeat(times, axis=1)
        return np.ascontiguousarray(picture, dtype=np.uint8)


class Camera(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Wrapper that takes a picture of every step and truncates the episode when its film is full.

    Attributes:
        roll: the pictures.
    """

    def __init__(self, env: Any, name: str, widest: int = WIDEST, limit: int = FRAMES) -> None:
        super().__init__(env)
        self.roll = Roll(env, name, widest, limit)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        result = self.env.reset(seed=seed, options=options)
        self.roll.begin()
        return result

    def step(self, action: Tree) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """One step and its picture."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        is_cut = self.roll.step(terminated or truncated)
        return obs, reward, terminated, truncated or is_cut, info


class TeamCamera:
    """See `Camera`, for a parallel multi-agent environment: a full film truncates all active agents.

    Attributes:
        roll: the pictures. unlimited: the environment itself.
    """

    def __init__(self, env: Any, name: str, widest: int = WIDEST, limit: int = FRAMES) -> None:
        self.env, self.unlimited, self._is_cut = env, foreign.unlimited(env), False
        self.roll = Roll(env, name, widest, limit)

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # while this is being copied
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def agents(self) -> list[str]:
        """The active agents."""
        return [] if self._is_cut else list(self.env.agents)

    def reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin an episode."""
        result = self.env.reset(*args, **kwargs)
        self._is_cut = False
        self.roll.begin()
        return result

    def step(self, actions: Any) -> tuple[Any, ...]:
        """One step and its picture."""
        seen, rewards, ends, cuts, infos = self.env.step(actions)
        going_on = [agent for agent in self.env.agents if not (ends.get(agent) or cuts.get(agent))]
        if self.roll.step(is_over=not going_on):
            self._is_cut, cuts = True, {**cuts, **dict.fromkeys(going_on, True)}
        return seen, rewards, ends, cuts, infos


def frame_rate(render_fps: Any) -> float:
    """Frames per second from an environment's metadata; `DEFAULT_FPS` for anything but a positive number."""
    try:
        fps = float(render_fps)
    except (TypeError, ValueError):
        return DEFAULT_FPS
    return max(MIN_FPS, fps) if 0 < fps < math.inf else DEFAULT_FPS


def halved(picture: np.ndarray) -> np.ndarray:
    """[H, W, 3] -> [H // 2, W // 2, 3]: means of two by two pixels."""
    height, width = picture.shape[0] // 2, picture.shape[1] // 2
    blocks = picture[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    return np.asarray(blocks.mean(axis=(1, 3)).round(), dtype=np.uint8)


def _writer(kind: str) -> Any:
    """The function (path, film) that writes this file format."""
    if kind == "mp4":
        try:
            import imageio_ffmpeg
        except ImportError:
            raise ConfigError(
                'MP4 needs imageio-ffmpeg. fix: pip install "agilerl[video]", or --format webp.'
            ) from None
        return lambda path, film: _write_mp4(imageio_ffmpeg, path, film)
    try:
        import PIL.Image
    except ImportError:
        raise ConfigError(f'{kind.upper()} needs Pillow. fix: pip install "agilerl[render]"') from None
    return lambda path, film: _write_pillow(PIL.Image, path, film, kind)


def _write_pillow(image: Any, path: Path, film: Film, kind: str) -> None:
    """Write about 25 frames per second at most, at the environment's pace; the file size grows with the frame rate."""
    skip = max(1, round(film.fps / SHOWN_FPS))
    pictures = [image.fromarray(frame) for frame in film.frames[::skip]]
    duration = max(20, round(1000 * skip / film.fps))  # players replace shorter GIF delays by long ones
    options: dict[str, Any] = {"quality": 60, "method": 4} if kind == "webp" else {"optimize": True}
    pictures[0].save(
        path, format=kind.upper(), save_all=True, append_images=pictures[1:], duration=duration, loop=0, **options
    )


def _write_mp4(ffmpeg: Any, path: Path, film: Film) -> None:
    height, width = (size // 2 * 2 for size in film.frames[0].shape[:2])  # the codec requires even sizes
    sink = ffmpeg.write_frames(str(path), (width, height), fps=film.fps, macro_block_size=1)
    sink.send(None)
    try:
        for frame in film.frames:
            sink.send(np.ascontiguousarray(frame[:height, :width]))
    finally:
        sink.close()
