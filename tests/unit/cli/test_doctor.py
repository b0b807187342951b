"""`agilerl doctor`: what it finds, what it calls broken, and that it answers at once without probes."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from typer.testing import CliRunner

from agilerl.algorithms import available, find_algorithm, is_team
from agilerl.cli import app, doctor, probing
from agilerl.cli.doctor import BROKEN, NOTE, OK, Finding, disk, gpu, threads
from agilerl.cli.probing import SETTINGS, Probe, environment, verdict_of
from agilerl.core.threads import available_cores
from agilerl.engine.recipes import recipe_of
from tests.contract.masked_envs import FORMS, KINDS, Masks, make, takes_form
from tests.probe.environments import DiscountedRewardEnv, PolicyEnv

ROOT = Path(__file__).resolve().parents[3]


def test_every_extra_that_it_names_is_one_of_the_package() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(doctor.EXTRAS) <= set(extras)


def test_without_probes_nothing_heavy_is_imported_and_nothing_broken_found() -> None:
    code = (
        "import sys\nfrom agilerl.cli.doctor import examine\n"
        "print(*examine(), sep='\\n')\nprint([m for m in ('torch', 'gymnasium', 'matplotlib') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.splitlines()[-1] == "[]"
    assert "ok  python" in found
    assert "!!" not in found


def agent_of(cls: Any) -> Any:
    obs, action = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,))
    if is_team(cls.__name__):
        return cls([obs], [gym.spaces.Discrete(2)], ["one"])
    return cls(obs, action if "Box" in cls.action_spaces else gym.spaces.Discrete(2))


def test_the_algorithms_with_kernels_are_those_with_a_recipe() -> None:
    page = (ROOT / "docs" / "speed.md").read_text(encoding="utf-8")
    (listed,) = re.findall(r"The updates of (.+?) run in C", page)
    classes = {name: find_algorithm(name) for name in available()}
    trained = {name: cls for name, cls in classes.items() if not (cls.learns_language or cls.reads_texts)}
    with_recipe = {name for name, cls in trained.items() if recipe_of(agent_of(cls)) is not None}
    assert set(listed.replace(" and ", ", ").split(", ")) == with_recipe


def test_a_missing_extra_has_its_line_and_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"atari": ("no_such_module", "Pong")})
    assert list(doctor.extras()) == [Finding("atari", NOTE, "not installed: Pong", 'pip install "agilerl[atari]"')]


def test_envpool_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str, is_installed: bool) -> str:
        if not is_installed:
            raise doctor.metadata.PackageNotFoundError(name)
        return "1.2.5"

    monkeypatch.setattr(doctor.metadata, "version", lambda name: version(name, True))
    assert (doctor.pool().state, doctor.pool().text[:14]) == (OK, "EnvPool 1.2.5:")
    monkeypatch.setattr(doctor.metadata, "version", lambda name: version(name, False))
    assert (doctor.pool().state, doctor.pool().fix) == (NOTE, 'pip install "agilerl[fast]"')


@pytest.mark.parametrize(("version", "state"), [("2.60.0", OK), ("2.51.2", NOTE), (None, NOTE)])
def test_ray_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch, version: str | None, state: str) -> None:
    def of(name: str) -> str:
        if version is None:
            raise doctor.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(doctor.metadata, "version", of)
    found = doctor.ray_here()
    assert (found.state, found.fix) == (state, "" if state == OK else 'pip install "agilerl[ray]"')
    assert version is None or found.text.startswith(f"Ray {version}")


def test_the_number_of_workers_is_that_of_auto() -> None:
    assert doctor.workers().text.startswith(f"--workers auto is {available_cores()} here")


def test_load_gpu_and_disk_are_judged() -> None:
    assert [threads(2, load).state for load in (None, 1.9, 9.8)] == [OK, OK, NOTE]
    assert [gpu(driver, cpu_build).state for driver, cpu_build in ((True, True), (True, False), (False, True))] == [
        NOTE, OK, OK,
    ]  # fmt: skip
    assert [disk(free, True).state for free in (1e6, 5e8, 5e9)] == [BROKEN, NOTE, OK]
    assert disk(5e9, False).state == BROKEN


def test_an_environment_is_made_stepped_and_matched_with_algorithms() -> None:
    found = {finding.name: finding for finding in environment("CartPole-v1", steps=50)}
    assert found["CartPole-v1"].text == "observations Box(4,), actions Discrete(2)"
    assert found["time limit"].text == "500 steps an episode"
    assert found["steps"].text.startswith("50 random ones, ")
    assert found["algorithms"].text == "BC, CQN, DQN, PPO, PQN, QRDQN, RainbowDQN, SAC take Discrete actions"


class Fails(gym.Env[np.ndarray, int]):
    """Its third step raises; it has no time limit."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Text(3)

    def __init__(self) -> None:
        self.time = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        if self.time == 3:
            raise RuntimeError("the simulator has gone")
        return np.zeros(2, np.float32), 1.0, False, False, {}


def test_what_is_broken_in_an_environment_is_named_and_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = gym.envs.registration.EnvSpec("Fails-v0", entry_point=f"{__name__}:Fails", disable_env_checker=True)
    monkeypatch.setitem(gym.registry, "Fails-v0", spec)
    found = {finding.name: finding for finding in environment("Fails-v0")}
    assert found["time limit"].state == NOTE
    assert found["steps"].text == "it fails: RuntimeError: the simulator has gone"
    assert found["algorithms"].text == "none takes Text actions"
    result = CliRunner().invoke(app, ["doctor", "--env", "Cartpole-v1"])
    assert result.exit_code == 1
    assert "!!  Cartpole-v1" in result.stdout
    assert "Did you mean 'CartPole-v1'?" in result.stdout


def stepped(make: Any, monkeypatch: pytest.MonkeyPatch) -> Finding:
    spec = gym.envs.registration.EnvSpec("Masked-v0", entry_point=make, disable_env_checker=True)
    monkeypatch.setitem(gym.registry, "Masked-v0", spec)
    return {finding.name: finding for finding in environment("Masked-v0", steps=40)}["steps"]


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in KINDS for form in FORMS if takes_form(kind, form)])
def test_masks_of_every_kind_and_form_are_followed(kind: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    counter: list[Masks] = []
    found = stepped(lambda **_: make(kind, form, counter), monkeypatch)
    assert found.state == OK, found
    assert sum(masks.steps for masks in counter) == 40
    assert sum(masks.illegal for masks in counter) == 0


ONE, PAIR = np.array([0, 1, 0], np.int8), np.array([1, 0], np.int8)
PARTS: dict[str, tuple[Any, Any]] = {
    "Dict": (
        gym.spaces.Dict(a=gym.spaces.Discrete(3), b=gym.spaces.Box(-1, 1, (2,)), c=gym.spaces.MultiBinary(2)),
        {"a": ONE, "b": None, "c": PAIR},
    ),
    "Tuple": (gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 3]))), (ONE, (PAIR, None))),
    "nested": (
        gym.spaces.Dict(a=gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Discrete(2)))), {"a": (ONE, None)},
    ),
    "flat": (gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.Discrete(2))), np.concatenate((ONE, PAIR))),
}  # fmt: skip


class Parted(gym.Env[np.ndarray, Any]):
    """Actions of several parts, of which the first choice must be 1."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)

    def __init__(self, case: str) -> None:
        self.action_space, self.mask = PARTS[case]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {"action_mask": self.mask}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        first = action["a"] if isinstance(action, dict) else action
        while isinstance(first, tuple):
            first = first[0]
        assert first == 1
        return np.zeros(2, np.float32), 0.0, False, False, {"action_mask": self.mask}


@pytest.mark.parametrize("case", PARTS)
def test_masks_of_parts_are_followed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stepped(lambda **_: Parted(case), monkeypatch)
    assert found.state == OK, found


def test_a_wrong_mask_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PARTS, "wrong", (gym.spaces.Discrete(3), PAIR))
    found = stepped(lambda **_: Parted("wrong"), monkeypatch)
    assert found.state == BROKEN
    assert "has 2 entries" in found.text


@pytest.mark.thorough
def test_a_learner_that_learns_passes_its_probe_and_one_that_does_not_is_broken() -> None:
    case = Probe("discount", DiscountedRewardEnv, "the discount")
    good = verdict_of("DQN", "transitions", SETTINGS["transitions"], case)
    assert good.state == OK, good
    slow = verdict_of("DQN", "transitions", {**SETTINGS["transitions"], "lr": 1e-6, "steps": 400}, case)
    assert slow.state == BROKEN
    assert "look at the discount" in slow.text
    refused = verdict_of("DQN", "transitions", {**SETTINGS["transitions"], "lr": -1.0}, case)
    assert (refused.state, "it fails: ConfigError" in refused.text) == (BROKEN, True)


@pytest.mark.slow
def test_all_probes_pass_in_under_a_minute_of_cpu() -> None:
    assert [str(finding) for finding in probing.probes() if finding.is_broken] == []


def test_rollouts_are_judged_by_values_and_actions() -> None:
    found = verdict_of("PPO", "rollouts", SETTINGS["rollouts"], Probe("policy", PolicyEnv, "the choice of actions"))
    assert found.state == OK, found
