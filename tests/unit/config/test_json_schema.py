"""The JSON schema of a manifest: it takes what the loader takes, and refuses what it refuses, key by key."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.declared import hyperparameters
from agilerl.cli import app
from agilerl.config import manifest_from, preset_for, preset_names
from agilerl.config.json_schema import manifest_schema
from agilerl.config.keys import leaf_paths
from agilerl.errors import AgileRLError


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return manifest_schema()


def keys(schema: dict[str, Any], prefix: str = "") -> set[str]:
    found = set()
    for name, part in schema.get("properties", {}).items():
        found |= keys(part, f"{prefix}{name}.") if "properties" in part else {prefix + name}
    return found


@pytest.mark.parametrize("algo", ["DQN", "PPO", "MADDPG", "GRPO"])
def test_every_key_is_described_with_range_and_default(schema: dict[str, Any], algo: str) -> None:
    known = keys(schema) | {f"algorithm.{name}" for name in schema["$defs"][algo]["properties"]}
    environment = schema["properties"]["environment"]["anyOf"][1]
    known |= {f"environment.{name}" for name in environment["properties"]}
    assert set(leaf_paths(algo)) <= known
    for name, each in hyperparameters(find_algorithm(algo)).items():
        entry = schema["$defs"][algo]["properties"][name]
        assert entry["default"] == each.manifest
        assert "Values: " in entry["description"]


def test_ranges_units_defaults_and_meanings_of_two_keys(schema: dict[str, Any]) -> None:
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    steps = schema["properties"]["training"]["properties"]["evo_steps"]
    assert (steps["minimum"], steps["default"], steps["x-unit"]) == (1, 10_000, "steps of one member")
    assert steps["description"].startswith("steps per member between evaluations")
    clip = schema["$defs"]["PPO"]["properties"]["clip_coef"]
    assert (clip["exclusiveMinimum"], clip["default"]) == (0, 0.2)
    assert "surrogate" in clip["description"]
    tau = schema["$defs"]["TD3"]["properties"]["tau"]  # described by DDPG and DQN, to which TD3 refers
    assert tau["description"].startswith("weight of the online network in each soft target update")
    assert schema["properties"]["training"]["properties"]["share"]["enum"] == ["all", "shard"]
    assert schema["properties"]["training"]["properties"]["dataset"]["type"] == ["string", "null"]


def test_the_command_writes_it(tmp_path: Path, schema: dict[str, Any]) -> None:
    shown = CliRunner().invoke(app, ["config", "schema"])
    assert json.loads(shown.stdout) == schema
    CliRunner().invoke(app, ["config", "schema", "--out", str(tmp_path / "a.json")])
    assert json.loads((tmp_path / "a.json").read_text()) == schema


# --- with jsonschema -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> Any:
    library = pytest.importorskip("jsonschema")
    library.Draft202012Validator.check_schema(schema)
    return library.Draft202012Validator(schema)


def test_every_preset_is_valid(validator: Any) -> None:
    files = [file for file in (resources.files("agilerl") / "presets").iterdir() if file.name.endswith(".yaml")]
    assert len(files) > 40
    for file in files:
        assert not [error.message for error in validator.iter_errors(yaml.safe_load(file.read_text()))], file.name
    for name in preset_names():
        complete = json.loads(json.dumps(preset_for(name).as_dict()))
        assert not [error.message for error in validator.iter_errors(complete)], name


GOOD: list[dict[str, Any]] = [
    {},
    {"algorithm": "PPO", "environment": "CartPole-v1"},
    {"algorithm": {"name": "PPO", "clip_coef": 0.1}, "training": None},
    {"algorithm": {"name": "DQN", "learning_rate": "1e-3", "learn_step": 0.5}, "training": {"max_steps": "2e5"}},
    {"algo": "DQN", "total_timesteps": 1000, "env_id": "CartPole-v1"},
    {"selection_strategy": {"tournament_size": 3}, "network": {"encoder_config": None}},
    {"algorithm": {"name": "PPO"}, "mutation": {"rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}}}},
    {"evolution": {"widths": [16, 64], "founders": "spread"}},
    {
        "evolution": {"scheme": "mf_pbt", "frequencies": [1, 5]},
        "mutation": {"rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}}},
    },
]
BAD: list[dict[str, Any]] = [
    {"trainig": {}},
    {"training": {"pop_size": 0}},
    {"training": {"pop_size": 2.5}},
    {"training": {"pop_size": True}},
    {"training": {"poop_size": 4}},
    {"training": {"share": "some"}},
    {"algorithm": {"name": "PPO", "tau": 0.1}},
    {"algorithm": {"name": "DQN", "lr": -1}},
    {"algorithm": {"name": "DQN", "lr": "fast"}},
    {"algorithm": {"name": "DQN", "learn_step": 1.5}},
    {"algorithm": "Nothing"},
    {"algorithm": {"name": "PPO"}, "mutation": {"rl_hp_selection": {"tau": {"min": 0.1, "max": 0.2}}}},
    {"algorithm": {"name": "PPO"}, "mutation": {"rl_hp_selection": {"lr": {"min": 0.1}}}},
    {"evolution": {"widths": [16]}},
    {"format": 2},
]


@pytest.mark.parametrize("number", range(len(GOOD)))
def test_what_the_loader_takes_is_valid(validator: Any, number: int) -> None:
    manifest_from(GOOD[number])
    assert not [error.message for error in validator.iter_errors(GOOD[number])]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_the_loader_refuses_is_not(validator: Any, number: int) -> None:
    with pytest.raises(AgileRLError):
        manifest_from(BAD[number])
    assert list(validator.iter_errors(BAD[number]))


def test_every_algorithm_has_its_rule(validator: Any) -> None:
    for name in available():
        assert not list(validator.iter_errors({"algorithm": {"name": name}}))
        assert list(validator.iter_errors({"algorithm": {"name": name, "no_such_key": 1}})), name
