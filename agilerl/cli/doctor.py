"""`agilerl doctor`: installed and missing components, with fixes, and a check that algorithms learn here."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

CORE = ("torch", "numpy", "gymnasium", "tensordict", "pydantic", "safetensors")
# Extra of the package -> (module that shows that it is installed, its purpose).
EXTRAS = {
    "box2d": ("Box2D", "LunarLander, BipedalWalker, CarRacing"),
    "mujoco": ("mujoco", "HalfCheetah, Ant, Humanoid"),
    "atari": ("ale_py", "Pong and the other Atari games"),
    "minigrid": ("minigrid", "MiniGrid and BabyAI"),
    "minatar": ("minatar", "MinAtar: five small Atari games"),
    "render": ("pygame", "films of most environments"),
    "video": ("imageio_ffmpeg", "films as MP4"),
    "bandit": ("sklearn", "evolution.scheme=pb2"),
    "plots": ("matplotlib", "run.plot()"),
    "tensorboard": ("tensorboard", "--tensorboard"),
    "wandb": ("wandb", "--track"),
    "mlflow": ("mlflow", "--track mlflow"),
    "trackio": ("trackio", "--track trackio"),
    "optuna": ("optuna", "agilerl optuna: a run as an Optuna study"),
    "hub": ("huggingface_hub", "agilerl push; runs named hf://user/name"),
    "watch": ("starlette", "agilerl watch, --watch"),
    "onnx": ("onnx", "agilerl export --onnx"),
    "llm": ("peft", "language models: GRPO, DPO, SFT"),
}
MIN_DISK_BYTES, LOW_DISK_BYTES = 50e6, 1e9  # bytes: a run of a small network takes some MB, a replay of images hundreds
OK, NOTE, BROKEN = "ok", "note", "broken"
GAMMA, CLOSE = 0.5, 0.2  # the probes' nearest wrong answer is 0.5 away


@dataclass(frozen=True)
class Finding:
    """One line: the component, "ok", "note" or "broken", and the fix."""

    name: str
    state: str
    text: str
    fix: str = ""

    @property
    def is_broken(self) -> bool:
        return self.state == BROKEN

    def __str__(self) -> str:
        sign = {OK: "ok  ", NOTE: "  - ", BROKEN: "!!  "}[self.state]
        return f"{sign}{self.name:<17} {self.text}{f'   fix: {self.fix}' if self.fix else ''}"


def examine(full: bool = False, env_id: str | None = None) -> Iterator[Finding]:
    """Yield findings as the checks run.

    Args:
        full: train on the probe environments too. env_id: make and step this environment, without training.
    """
    yield from packages()
    yield from extras()
    yield from machine()
    if env_id is not None:
        yield from environment(env_id)
    if full:
        yield from torch_here()
        yield from probes()


def packages() -> Iterator[Finding]:
    """Python and the required packages, by their metadata, without importing them."""
    version = sys.version.split()[0]
    old = sys.version_info < (3, 11)
    yield Finding("python", BROKEN if old else OK, version, "Python 3.11 or newer" if old else "")
    for name in CORE:
        try:
            yield Finding(name, OK, metadata.version(name))
        except metadata.PackageNotFoundError:
            yield Finding(name, BROKEN, "is not installed", f"pip install {name}")


def kernels() -> Finding:
    """What runs the updates: C, or torch alone."""
    from agilerl.native.library import VARIABLE, library, wanted

    built = library()
    if built is not None:
        return Finding(
            "kernels",
            OK,
            f"native: updates run in C for the algorithms of docs/speed.md, with vectors of {built.vector} bits",
        )
    if wanted() == "0":
        return Finding("kernels", NOTE, f"torch: {VARIABLE}=0 switches those in C off", f"unset {VARIABLE}")
    reason = "torch: none in C were built for this processor"
    return Finding("kernels", NOTE, reason, "install a C compiler, then agilerl again")


def extras() -> Iterator[Finding]:
    """Optional dependencies."""
    for extra, (module, purpose) in EXTRAS.items():
        if importlib.util.find_spec(module) is not None:
            yield Finding(extra, OK, f"installed: {purpose}")
        else:
            yield Finding(extra, NOTE, f"not installed: {purpose}", f'pip install "agilerl[{extra}]"')


def pool() -> Finding:
    """EnvPool and its version, from its metadata."""
    purpose = "environment.backend=envpool steps LunarLander and others in C++"
    try:
        return Finding("fast", OK, f"EnvPool {metadata.version('envpool')}: {purpose}")
    except metadata.PackageNotFoundError:
        return Finding("fast", NOTE, f"EnvPool is not installed: {purpose}", 'pip install "agilerl[fast]"')


def ray_here() -> Finding:
    """Ray and its version, from its metadata."""
    from packaging.version import Version

    from agilerl.workers.connection import INSTALL, MIN_RAY

    purpose = "--ray puts workers on a cluster; a population as a trial of Ray Tune"
    try:
        version = metadata.version("ray")
    except metadata.PackageNotFoundError:
        return Finding("ray", NOTE, f"not installed: {purpose}", INSTALL)
    is_old = Version(version) < Version(MIN_RAY)
    text = f"Ray {version}, older than {MIN_RAY}" if is_old else f"Ray {version}"
    return Finding("ray", NOTE if is_old else OK, f"{text}: {purpose}", INSTALL if is_old else "")


def machine(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Cores and load, display, GPU, disk."""
    yield threads(os.cpu_count() or 1, os.getloadavg()[0] if hasattr(os, "getloadavg") else None)
    yield workers()
    yield kernels()
    yield pool()
    yield ray_here()
    if environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY") or sys.platform != "linux":
        yield Finding("display", OK, "there is one")
    else:
        yield Finding("display", OK, "none: agilerl record draws without one (SDL_VIDEODRIVER=dummy, MUJOCO_GL=egl)")
    yield gpu(Path("/proc/driver/nvidia/version").exists(), _cpu_build())
    yield disk(shutil.disk_usage(Path.cwd()).free, os.access(Path.cwd(), os.W_OK))


def threads(cores: int, load: float | None) -> Finding:
    """Cores and load: training slows down where other processes use the cores."""
    text = f"{cores} cores" + ("" if load is None else f", load {load:.1f}")
    if load is not None and load > cores:
        return Finding("threads", NOTE, text, "wait until it is less: training shares the cores")
    return Finding("threads", OK, f"{text}; small networks train with one thread")


def workers() -> Finding:
    """How many processes `--workers auto` gives: `agilerl.core.threads.available_cores`, which imports torch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Finding("workers", OK, f"--workers auto is {cores} here, one per core that this process may use")


def gpu(has_driver: bool, is_cpu_build: bool) -> Finding:
    """Whether this PyTorch can use the GPU."""
    if has_driver and is_cpu_build:
        return Finding("gpu", NOTE, "an NVIDIA driver, but PyTorch is a CPU build", "install PyTorch with CUDA")
    if has_driver:
        return Finding(
            "gpu", OK, "an NVIDIA driver; --full asks PyTorch for it. --device auto: small dense networks on the CPU"
        )
    return Finding("gpu", OK, "none: the CPU trains, which suits small networks")


def disk(free: float, is_writable: bool) -> Finding:
    """Disk space for run directories, which are created in the working directory."""
    text = f"{free / 1e9:.1f} GB free here"
    if not is_writable:
        return Finding("disk", BROKEN, "the working folder cannot be written", "--out DIR, or another folder")
    if free < MIN_DISK_BYTES:
        return Finding("disk", BROKEN, text, "make room: a run directory takes some MB")
    return Finding("disk", NOTE if free < LOW_DISK_BYTES else OK, text, "make room" if free < LOW_DISK_BYTES else "")


def _cpu_build() -> bool:
    try:
        return metadata.version("torch").endswith("+cpu")
    except metadata.PackageNotFoundError:
        return True


def torch_here() -> Iterator[Finding]:
    """CUDA devices, by PyTorch."""
    import torch

    if torch.cuda.is_available():
        yield Finding("cuda", OK, f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    else:
        yield Finding("cuda", OK, f"PyTorch {torch.__version__} finds none")


def environment(env_id: str, steps: int = 500) -> Iterator[Finding]:
    """Make and step an environment: its spaces, speed, time limit, and the algorithms that fit."""
    import gymnasium

    from agilerl.algorithms import taking_actions
    from agilerl.core.env_ids import IN_PYTHON, is_language_id, is_team_id, resolve_env_id
    from agilerl.core.spaces import check_supported, short_form
    from agilerl.envs.lanes import failure_of_make
    from agilerl.envs.limits import ends_by_itself, time_limit
    from agilerl.envs.readable import readable
    from agilerl.errors import AgileRLError

    if is_team_id(env_id):
        yield from team_environment(env_id, steps)
        return
    if is_language_id(env_id):
        yield from questions(env_id)
        return
    try:
        name = resolve_env_id(env_id)
        env = gymnasium.make(name)
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


def _stepped(env: Any, steps: int) -> Finding:
    """Step with random actions; legal ones if it has a mask in its info, observations or `action_masks()`."""
    from agilerl.envs.lanes import mask_method
    from agilerl.envs.masks import MASK, ActionMasks, sample_mask
    from agilerl.envs.observed_masks import holds_mask

    space, by_method = env.action_space, mask_method(env)
    reader, is_seen = ActionMasks(space), holds_mask(env.observation_space, space)

    def legal(obs: Any, info: Any) -> Any:
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
        begun, episodes = time.perf_counter(), 0
        for _ in range(steps):
            obs, reward, terminated, truncated, info = env.step(legal(obs, info))
            float(reward)
            if terminated or truncated:
                episodes += 1
                obs, info = env.reset()
        rate = steps / max(time.perf_counter() - begun, 1e-9)
    except Exception as error:  # a custom environment may raise anything
        return Finding("steps", BROKEN, f"it fails: {type(error).__name__}: {' '.join(str(error).split())}")
    return Finding("steps", OK, f"{steps} random ones, {rate:.0f} a second, {episodes} episodes ended")


def questions(env_id: str) -> Iterator[Finding]:
    """Make a language environment: an example prompt, and the algorithms that fit."""
    import string

    from agilerl.algorithms import LANGUAGE
    from agilerl.errors import AgileRLError
    from agilerl.language import tiny_tokenizer
    from agilerl.llm_envs.by_id import make_language_env

    try:
        gym = make_language_env(env_id, tiny_tokenizer(string.printable), train_size=4, test_size=2, report_size=2)
    except AgileRLError as error:
        message, _, fix = " ".join(str(error).removeprefix(f"{env_id}: ").split()).partition("fix: ")
        yield Finding(env_id, BROKEN, message.strip(), fix)
        return
    asked = gym.split("test")[0].question
    yield Finding(env_id, OK, f"asks {asked if len(asked) < 60 else asked[:57] + '...'!r}")
    yield Finding("algorithms", OK, f"{', '.join(LANGUAGE)}, with --model PATH")


def team_environment(env_id: str, steps: int = 500) -> Iterator[Finding]:
    """See `environment`, for a multi-agent environment."""
    import numpy as np

    from agilerl.algorithms import available, find_algorithm, is_team
    from agilerl.algorithms.teams.actions import TeamActions
    from agilerl.core.spaces import short_form
    from agilerl.envs.team_vector import make_multi_agent_vect_envs
    from agilerl.errors import AgileRLError

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
    each = (
        f"{agent} {short_form(team.observation_spaces[agent])} -> {short_form(team.action_spaces[agent])}"
        for agent in team.agents
    )
    yield Finding(env_id, OK, f"{len(team.agents)} agents: {', '.join(each)}")
    try:
        layout, draw = TeamActions.of(team.action_spaces, env_id, sampled=True), np.random.default_rng(0)
        _, info = lanes.reset(np.zeros(1, np.int64))
        begun, episodes = time.perf_counter(), 0
        for _ in range(steps):
            noise, gumbel = draw.uniform(-1, 1, (1, layout.components)), draw.gumbel(size=(1, layout.width))
            stored = layout.act(np.zeros_like(gumbel), noise, gumbel, info.get("action_mask"))
            batch = lanes.step(layout.environment(stored))
            episodes, info = episodes + int((batch.terminated | batch.truncated).sum()), batch.info
        rate = steps / max(time.perf_counter() - begun, 1e-9)
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
    from agilerl.algorithms import DEFAULT_ALGORITHM, DEFAULT_UNTUNED, available, find_algorithm
    from agilerl.testing import probes as tasks

    cases = [
        Probe("constant", tasks.ConstantRewardEnv, "the value head, the loss or the optimiser"),
        Probe("observation", tasks.ObsDependentRewardEnv, "the way from observations to values"),
        Probe("discount", tasks.DiscountedRewardEnv, "the discount or the next observation"),
        Probe("policy", tasks.PolicyEnv, "the choice of actions"),
    ]
    usual = {find_algorithm(name).experience.name: name for name in (*available(), DEFAULT_ALGORITHM, DEFAULT_UNTUNED)}
    for kind, settings in SETTINGS.items():
        for case in cases:
            yield verdict_of(usual[kind], kind, settings, case)


def verdict_of(algo: str, kind: str, settings: Mapping[str, Any], case: Probe) -> Finding:
    """Train one algorithm on one probe."""
    name, begun = f"{algo} {case.name}", time.perf_counter()
    try:
        error, is_best = learned(algo, kind, settings, case.make)
    except Exception as failure:  # a probe that cannot run is the finding
        return Finding(name, BROKEN, f"it fails: {type(failure).__name__}: {' '.join(str(failure).split())}")
    spent = f"[{time.perf_counter() - begun:.1f} s]"
    if error > CLOSE or not is_best:
        problem = f"values are off by {error:.2f}" if error > CLOSE else "it chooses the wrong action"
        return Finding(name, BROKEN, f"{problem}: look at {case.fails}  {spent}")
    return Finding(name, OK, f"values within {error:.2f} of the answer, best action chosen  {spent}")


def learned(algo: str, kind: str, settings: Mapping[str, Any], make: Callable[[], Any]) -> tuple[float, bool]:
    """(largest error of the learned values, whether the greedy actions are optimal)."""
    import numpy as np
    import torch

    import agilerl

    steps = int(settings["steps"])
    asked = {**COMMON, **{key: value for key, value in settings.items() if key != "steps"}, "evo_steps": steps}
    run = agilerl.train(
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
