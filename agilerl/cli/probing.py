"""The checks of `agilerl doctor` that need torch: an environment, and whether algorithms learn here."""

from __future__ import annotations

import string
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from agilerl.algorithms import (
    DEFAULT_ALGORITHM,
    DEFAULT_UNTUNED,
    LANGUAGE,
    available,
    find_algorithm,
    is_team,
    taking_actions,
)
from agilerl.algorithms.teams.actions import TeamActions
from agilerl.api import train
from agilerl.cli.doctor import BROKEN, NOTE, OK, Finding
from agilerl.core import foreign
from agilerl.core.env_ids import IN_PYTHON, is_language_id, is_team_id, resolve_env_id
from agilerl.core.spaces import check_supported, short_form
from agilerl.envs.lanes import failure_of_make, mask_method
from agilerl.envs.limits import ends_by_itself, time_limit
from agilerl.envs.masks import MASK, ActionMasks, sample_mask
from agilerl.envs.observed_masks import holds_mask
from agilerl.envs.readable import readable
from agilerl.envs.team_vector import make_multi_agent_vect_envs
from agilerl.errors import AgileRLError
from agilerl.language import tiny_tokenizer
from agilerl.llm_envs.by_id import make_language_env
from agilerl.testing import probes as probe

GAMMA, CLOSE = 0.5, 0.2  # the probes' nearest wrong answer is 0.5 away


def torch_here() -> Iterator[Finding]:
    """CUDA devices, by PyTorch."""
    if torch.cuda.is_available():
        yield Finding("cuda", OK, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    else:
        yield Finding("cuda", OK, f"PyTorch {torch.__version__} finds none")


def environment(env_id: str, steps: int = 500) -> Iterator[Finding]:
    """Make and step an environment: its spaces, speed, time limit, and the algorithms that fit."""
    if is_team_id(env_id):
        yield from team_environment(env_id, steps)
        return
    if is_language_id(env_id):
        yield from questions(env_id)
        return
    try:
        name = resolve_env_id(env_id)
        env = gym.make(name)
    except (Exception, SystemExit) as error:  # of a constructor
        failure = failure_of_make(error, env_id)
        message, _, fix = " ".join(str(failure).removeprefix(f"{env_id}: ").split()).partition("fix: ")
        if "inherit from the gymnasium.Env" in message:  # registered, as a class of another interface
            fix = f"class ...(gymnasium.Env); {IN_PYTHON}"
        yield Finding(env_id, BROKEN, message.strip() or type(error).__name__, fix)
        return
    try:
        space = readable(env).observation_space
        yield Finding(name, OK, f"observations {short_form(space)}, actions {short_form(env.action_space)}")
        yield _limit(time_limit(env), ends_by_itself(env))
        yield _stepped(env, steps)
        try:
            check_supported(space)
        except AgileRLError as error:
            yield Finding("fits", BROKEN, str(error))
            return
    finally:
        env.close()
    kind = type(env.action_space).__name__
    fitting = taking_actions(kind)
    if fitting:
        yield Finding("algorithms", OK, f"{', '.join(fitting)} take {kind} actions")
    else:
        yield Finding("algorithms", BROKEN, f"none takes {kind} actions", "a wrapper that makes them Discrete or Box")


def _limit(limit: int | None, ends: bool) -> Finding:
    if limit is None and ends:
        return Finding("time limit", OK, "its own, by the mission")
    if limit is None:
        fix = "--set training.train_max_episode_steps=1000 --set training.eval_steps=1000, if it may go on for ever"
        return Finding("time limit", NOTE, "none in its specification", fix)
    return Finding("time limit", OK, f"{limit} steps an episode")


def _stepped(env: foreign.Env, steps: int) -> Finding:
    """Step with random actions; legal ones if it has a mask in its info, observations or `action_masks()`."""
    space, by_method = env.action_space, mask_method(env)
    reader, is_seen = ActionMasks(space), holds_mask(env.observation_space, space)

    def legal(obs: Any, info: object) -> Any:
        if isinstance(info, dict) and MASK in info:
            mask = info[MASK]
        elif by_method is not None:
            mask = by_method()
        else:
            mask = obs[MASK] if is_seen else None
        if mask is None or not reader.width:
            return space.sample()
        return space.sample(mask=sample_mask(space, reader.one(mask)))

    try:
        space.seed(0)
        obs, info = env.reset(seed=0)
        start, episodes = time.perf_counter(), 0
        for _ in range(steps):
            obs, reward, terminated, truncated, info = env.step(legal(obs, info))
            float(reward)
            if terminated or truncated:
                episodes += 1
                obs, info = env.reset()
        rate = steps / max(time.perf_counter() - start, 1e-9)
    except Exception as error:  # a custom environment may raise anything
        return Finding("steps", BROKEN, f"it fails: {type(error).__name__}: {' '.join(str(error).split())}")
    return Finding("steps", OK, f"{steps} random ones, {rate:.0f} a second, {episodes} episodes ended")


def questions(env_id: str) -> Iterator[Finding]:
    """Make a language environment: an example prompt, and the algorithms that fit."""
    try:
        tasks = make_language_env(env_id, tiny_tokenizer(string.printable), train_size=4, test_size=2, report_size=2)
    except AgileRLError as error:
        message, _, fix = " ".join(str(error).removeprefix(f"{env_id}: ").split()).partition("fix: ")
        yield Finding(env_id, BROKEN, message.strip(), fix)
        return
    asked = tasks.split("test")[0].question
    yield Finding(env_id, OK, f"asks {asked if len(asked) < 60 else asked[:57] + '...'!r}")
    yield Finding("algorithms", OK, f"{', '.join(LANGUAGE)}, with --model PATH")


def team_environment(env_id: str, steps: int = 500) -> Iterator[Finding]:
    """See `environment`, for a multi-agent environment."""

    def fits(algo: str) -> bool:
        try:
            TeamActions.of(team.action_spaces, algo, find_algorithm(algo).policies_are_distributions)
        except AgileRLError:
            return False
        return True

    try:
        vector = make_multi_agent_vect_envs(env_id)
    except (AgileRLError, TypeError, ImportError) as error:
        message, _, fix = " ".join(str(error).removeprefix(f"{env_id}: ").split()).partition("fix: ")
        yield Finding(env_id, BROKEN, message.strip() or type(error).__name__, fix)
        return
    team, lanes = vector.team, vector.lanes
    spaces = (
        f"{agent} {short_form(team.observation_spaces[agent])} -> {short_form(team.action_spaces[agent])}"
        for agent in team.agents
    )
    yield Finding(env_id, OK, f"{len(team.agents)} agents: {', '.join(spaces)}")
    try:
        layout, draw = TeamActions.of(team.action_spaces, env_id, sampled=True), np.random.default_rng(0)
        _, info = lanes.reset(np.zeros(1, np.int64))
        start, episodes = time.perf_counter(), 0
        for _ in range(steps):
            noise, gumbel = draw.uniform(-1, 1, (1, layout.components)), draw.gumbel(size=(1, layout.width))
            stored = layout.act(np.zeros_like(gumbel), noise, gumbel, info.get("action_mask"))
            batch = lanes.step(layout.environment(stored))
            episodes, info = episodes + int((batch.terminated | batch.truncated).sum()), batch.info
        rate = steps / max(time.perf_counter() - start, 1e-9)
        yield Finding("steps", OK, f"{steps} random ones, {rate:.0f} a second, {episodes} episodes ended")
    except Exception as error:  # a custom environment may raise anything
        yield Finding("steps", BROKEN, f"it fails: {type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        vector.close()
    fitting = [algo for algo in available() if is_team(algo) and fits(algo)]
    if fitting:
        yield Finding("algorithms", OK, f"{', '.join(fitting)} take these actions")
    else:
        yield Finding("algorithms", BROKEN, "none takes these actions", "a wrapper that makes them Discrete or Box")


@dataclass(frozen=True)
class Probe:
    """An environment with a known solution: its name, its factory, and the likely fault if it is not learned."""

    name: str
    make: Callable[[], Any]
    fails: str


# Settings of each kind of learner for the probes.
SETTINGS: dict[str, dict[str, Any]] = {
    "transitions": {
        "steps": 2400, "lr": 4e-3, "batch_size": 32, "learn_step": 2, "tau": 0.1, "num_envs": 2, "learning_delay": 100,
        "eps_start": 1.0, "eps_end": 1.0,
    },
    "rollouts": {
        "steps": 5120, "lr": 5e-3, "batch_size": 64, "learn_step": 128, "update_epochs": 8, "num_envs": 8,
        "lr_schedule": "constant", "target_kl": None, "normalize_observations": False, "normalize_rewards": False,
    },
}  # fmt: skip
COMMON: dict[str, Any] = {
    "gamma": GAMMA, "eval_episodes": 1, "eval_steps": 5, "latent_dim": 16, "target_score": None,
    "network.encoder_config.hidden_size": [32], "network.head_config.hidden_size": [32],
    "elite_rescore_episodes": 0, "confirm_episodes": 0, "mutation.rl_hp_selection": {},
}  # fmt: skip


def probes() -> Iterator[Finding]:
    """Train the default algorithm of each kind on environments that isolate one component each; check the values."""
    cases = [
        Probe("constant", probe.ConstantRewardEnv, "the value head, the loss or the optimiser"),
        Probe("observation", probe.ObsDependentRewardEnv, "the way from observations to values"),
        Probe("discount", probe.DiscountedRewardEnv, "the discount or the next observation"),
        Probe("policy", probe.PolicyEnv, "the choice of actions"),
    ]
    usual = {find_algorithm(name).experience.name: name for name in (*available(), DEFAULT_ALGORITHM, DEFAULT_UNTUNED)}
    for kind, settings in SETTINGS.items():
        for case in cases:
            yield verdict_of(usual[kind], kind, settings, case)


def verdict_of(algo: str, kind: str, settings: Mapping[str, Any], case: Probe) -> Finding:
    """Train one algorithm on one probe."""
    name, start = f"{algo} {case.name}", time.perf_counter()
    try:
        error, is_best = learned(algo, kind, settings, case.make)
    except Exception as failure:  # a probe that cannot run is the finding
        return Finding(name, BROKEN, f"it fails: {type(failure).__name__}: {' '.join(str(failure).split())}")
    spent = f"[{time.perf_counter() - start:.1f} s]"
    if error > CLOSE or not is_best:
        problem = f"values are off by {error:.2f}" if error > CLOSE else "it chooses the wrong action"
        return Finding(name, BROKEN, f"{problem}: look at {case.fails}  {spent}")
    return Finding(name, OK, f"values within {error:.2f} of the answer, best action chosen  {spent}")


def learned(algo: str, kind: str, settings: Mapping[str, Any], make: Callable[[], Any]) -> tuple[float, bool]:
    """(largest error of the learned values, whether the greedy actions are optimal)."""
    steps = int(settings["steps"])
    asked = {**COMMON, **{key: value for key, value in settings.items() if key != "steps"}, "evo_steps": steps}
    run = train(
        make, algo, population=1, steps=steps, seed=1, device="cpu", out=None, verbose=False, evolution=False, **asked
    )
    agent, env = run.population[0], make()
    best = env.expected_q(GAMMA)
    with torch.no_grad():
        if kind == "rollouts":
            chosen, _, _, values, *_ = agent.get_action(env.observations, training=False)
        else:
            table = agent.policy_module()(torch.as_tensor(env.observations)).numpy()
            chosen, values = table.argmax(axis=1), table.max(axis=1)
    values, chosen = np.asarray(values).reshape(len(best)), np.asarray(chosen).reshape(len(best))
    wanted = best.max(axis=1)
    is_best = bool((best[np.arange(len(best)), chosen.astype(int)] >= wanted - 1e-6).all())
    return float(np.abs(values - wanted).max()), is_best
