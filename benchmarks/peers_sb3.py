"""Stable-Baselines3's models for `opponent_peers.py`: environments, models from a start, batched play, its own arm."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
from peers_clock import Player, Watch
from stable_baselines3.common.callbacks import BaseCallback

LAYERS = {"DQN": 2, "PPO": 2, "SAC": 2, "TD3": 2}  # hidden layers of its default networks
REPLAY = 1_000_000  # its default capacity


class FlatFloats(gymnasium.ObservationWrapper):  # type: ignore[misc]
    """Observations of a box, or the image of a dictionary, as one row of floats. Seeds are those of 32 bits."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        space = env.observation_space
        self.of_image = isinstance(space, gymnasium.spaces.Dict)
        space = space["image"] if self.of_image else space
        low, high = (np.asarray(edge, np.float32).reshape(-1) for edge in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return super().reset(seed=None if seed is None else seed % 2**32, options=options)  # MinAtar refuses more

    def observation(self, observation: Any) -> Any:
        return np.asarray(observation["image"] if self.of_image else observation, np.float32).reshape(-1)


def make_env(env_id: str) -> Any:
    """An environment that an MlpPolicy can see."""
    if env_id.startswith("MiniGrid"):
        import minigrid  # noqa: F401  (registers its environments)
    if env_id.startswith("MinAtar") and env_id not in gymnasium.registry:
        from minatar.gym import register_envs

        register_envs()
    env = gymnasium.make(env_id)
    return FlatFloats(env) if env_id.startswith(("MiniGrid", "MinAtar")) else env


def play(policy: Any, env_id: str, seeds: list[int]) -> tuple[float, int]:
    """Mean return of one greedy episode per seed, all side by side, and their env_steps."""
    envs = [make_env(env_id) for _ in seeds]
    observations = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
    playing, total, env_steps = list(range(len(seeds))), 0.0, 0
    while playing:
        actions, _ = policy.predict(np.stack([observations[i] for i in playing]), deterministic=True)
        still = []
        for i, action in zip(playing, actions, strict=True):
            observations[i], reward, terminated, truncated, _ = envs[i].step(action)
            total += float(reward)
            if not (terminated or truncated):
                still.append(i)
        env_steps += len(playing)
        playing = still
    for env in envs:
        env.close()
    return total / len(seeds), env_steps


def player_of(policy: Any, env_id: str) -> Player:
    return lambda seeds: play(policy, env_id, seeds)[0]


def default_of(algo: str, name: str) -> Any:
    """The value that the library's class has for a parameter."""
    return inspect.signature(getattr(stable_baselines3, algo)).parameters[name].default


def start_of(job: dict[str, Any]) -> dict[str, Any]:
    """Hyperparameters of the job's start: the library's defaults, and what is changed of them."""
    start, algo = job["start"], job["algo"]
    given = {"learning_rate": start["lr_factor"] * default_of(algo, "learning_rate")}
    for name in ("gamma", "batch_size"):
        value = start.get(name)
        given[name] = default_of(algo, name) if value is None else value
    return given


def make_model(job: dict[str, Any], seed: int, **hyperparameters: Any) -> Any:
    """A model of the job's algorithm with the start's hyperparameters, changed by those that are given."""
    given = {**start_of(job), **hyperparameters}
    width = job["start"].get("width")
    if width is not None:
        given["policy_kwargs"] = {"net_arch": [width] * LAYERS[job["algo"]]}
    kind = getattr(stable_baselines3, job["algo"])
    return kind("MlpPolicy", make_env(job["env"]), seed=seed, device="cpu", **given)


def explore_over(model: Any, share: Callable[[], float]) -> None:
    """Let epsilon fall, by the model's own numbers, over the first part of `share()` instead of over one `learn`."""
    if not hasattr(model, "exploration_schedule"):
        return
    first, last = model.exploration_initial_eps, model.exploration_final_eps
    fraction = model.exploration_fraction
    model.exploration_schedule = lambda _: first + (last - first) * min(1.0, share() / fraction)


class EachStep(BaseCallback):  # type: ignore[misc]
    """Calls a function with the model after each step of the one environment; it says whether to go on."""

    def __init__(self, go_on: Callable[[Any], bool]) -> None:
        super().__init__()
        self.go_on = go_on

    def _on_step(self) -> bool:
        return self.go_on(self.model)


def run_arm(job: dict[str, Any]) -> dict[str, Any]:
    """The library's defaults, for as long as the budgets last."""
    watch = Watch(job)
    model = make_model(job, job["seed"])
    explore_over(model, lambda: watch.share)

    def go_on(model: Any) -> bool:
        watch.training_env_steps = model.num_timesteps
        return not watch.look(lambda: player_of(model.policy, job["env"]))

    model.learn(10**12, callback=EachStep(go_on))
    return watch.line(lambda: player_of(model.policy, job["env"]), start_of(job))
