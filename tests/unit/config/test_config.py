"""The manifest: what it accepts, what it says about mistakes, and that it round-trips."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agilerl.algorithms import canonical_name
from agilerl.config import (
    apply_overrides,
    apply_sets,
    dump_yaml,
    load_manifest,
    manifest_from,
    on_preset,
    preset_for,
    preset_names,
)
from agilerl.config.check import problems_of
from agilerl.config.schema import Probabilities
from agilerl.config.yaml_text import parse_yaml
from agilerl.errors import AgileRLError, AlgorithmError, ConfigError


def write(folder: Path, text: str, name: str = "my.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("env_id", [*preset_names(), "Foo-v0"])
def test_presets_are_valid_and_survive_yaml(env_id: str) -> None:
    preset = preset_for(env_id)
    assert preset.environment.name == env_id
    again = manifest_from(yaml.safe_load(dump_yaml(preset)))
    assert again == preset
    assert again.hash() == preset.hash()


def test_an_older_version_takes_the_newest_preset_and_an_unknown_id_the_default() -> None:
    old, new = preset_for("LunarLander-v2"), preset_for("LunarLander-v3")
    assert old.training == new.training
    assert old.training.train_max_episode_steps == 400
    assert preset_for("Foo-v0").training.target_score is None


@pytest.mark.parametrize("name", ["dqn", "DQN", " D-q_n "])
def test_algorithm_names_ignore_case_and_separators(name: str) -> None:
    assert canonical_name(name) == "DQN"
    assert manifest_from({"algorithm": {"name": name}}).algorithm.name == "DQN"


MISTAKES = [
    ("training: {popsize: 4}", "my.yaml: training.popsize is not a known key. Did you mean 'pop_size'?"),
    ("trainin: {pop_size: 4}", "my.yaml: trainin is not a known key at the top level. Did you mean 'training'?"),
    ("algorithm: {learning_rat: 1}", "my.yaml: algorithm.learning_rat is not a known key. Did you mean"),
    ("network: {encoder_config: {hiden_size: [64]}}", "network.encoder_config.hiden_size is not a known key. "),
    ("training: {pop_size: 0}", "my.yaml: training.pop_size must be an integer of at least 1; got 0."),
    ("training: {pop_size: true}", "training.pop_size must be an integer of at least 1; got True."),
    ("training: {pop_size: 2.5}", "training.pop_size must be an integer of at least 1; got 2.5."),
    ("algorithm: {lr: .nan}", "algorithm.lr must be above 0; got nan."),
    ("algorithm: {gamma: 1.5}", "algorithm.gamma must be in [0, 1]; got 1.5."),
    (
        "training: {eps_start: 0.1, eps_end: 0.5}",
        "training.eps_end=0.5 must be at most eps_start; got",
    ),
    ("training: 4", "training must be a section of keys; got 4."),
    ("mutation: {rl_hp_selection: {lr: {min: 1}}}", "mutation.rl_hp_selection.lr.max is missing."),
    ("mutation: {rl_hp_selection: {lr: {min: 2, max: 1}}}", "mutation.rl_hp_selection.lr: min must be <= max (1.0)"),
    ("mutation: {rl_hp_selection: {bach_size: {min: 1, max: 2}}}", "Did you mean 'batch_size'?"),
    ("training: {pop_size: 4, pop_size: 5}", "my.yaml: line 1, column 25 is not valid YAML: the key 'pop_size' stands"),
    ("training: [", "my.yaml: line"),
    ("- 1", "my.yaml: expected sections"),
    ("algorithm: {lr: 1.0e-3, learning_rate: 1.0e-3}", "algorithm.learning_rate and algorithm.lr are the same key."),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[m[0] for m in MISTAKES])
def test_a_mistake_in_a_file_is_one_line_that_names_the_place(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_manifest(write(tmp_path, text), "CartPole-v1", "DQN")
    line = str(caught.value)
    assert message in line
    assert "\n" not in line
    assert "http" not in line


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("010", 10), ("-010", -10), ("08", 8), ("0_7", 7), ("00", 0), ("1_000", 1000), ("0x10", 16), ("0b11", 3),
        ("+7", 7), ("017.5", 17.5), ("1:30", "1:30"), ("1:30.5", "1:30.5"), (".inf", math.inf), ("1.0e-3", 1e-3),
        ("'010'", "010"), ("[010, 09]", [10, 9]),
    ],
)  # fmt: skip
def test_numbers_of_yaml_are_decimal(text: str, value: Any, tmp_path: Path) -> None:
    assert parse_yaml(f"a: {text}", "my.yaml") == {"a": value}
    if isinstance(value, int) and value >= 0:
        file = write(tmp_path, f"training: {{seed: {text}}}")
        assert load_manifest(file, "CartPole-v1", "DQN").training.seed == value
        assert apply_sets(preset_for("CartPole-v1", "DQN"), [f"training.seed={text}"]).training.seed == value


def test_all_problems_of_a_file_are_listed_at_once(tmp_path: Path) -> None:
    text = "training: {popsize: 4, max_steps: -1}\nalgorithm: {bath_size: 8}\n"
    with pytest.raises(ConfigError) as raised:
        load_manifest(write(tmp_path, text), "CartPole-v1", "DQN")
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    for line, name in zip(lines, ("algorithm.bath_size", "training.max_steps", "training.popsize"), strict=True):
        assert re.fullmatch(rf"my\.yaml: {name} .* fix: .*", line)


def test_an_unknown_algorithm_names_the_nearest() -> None:
    with pytest.raises(
        AlgorithmError, match=r"unknown algorithm 'PPOO'\. Did you mean 'PPO'\? \(known: BC, BC_LM, CISPO, CQL"
    ):
        preset_for("CartPole-v1", "PPOO")
    assert manifest_from({"algorithm": "neural-ucb"}).algorithm.name == "NeuralUCB"


def test_rules_between_keys_wait_for_an_algorithm_that_is_known(tmp_path: Path) -> None:
    """CQL learns from the file, and its name alone is misspelt: another algorithm's rules are not asked."""
    path = write(tmp_path, "algorithm: {name: CQLL}\nenvironment: {name: CartPole-v1}\ntraining: {dataset: a.npz}\n")
    assert [problem.path for problem in problems_of(path)] == ["algorithm.name"]
    with pytest.raises(AlgorithmError, match=r"unknown algorithm 'CQLL'.* fix: CQL\.$"):
        load_manifest(path)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no configuration file .*nothing\.yaml\. fix:"):
        load_manifest(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("clear", "key", "value"),
    [
        ("min_noise_scale", "explore_least", 0.25),
        ("max_confirmation_episodes", "confirm_most", 256),
        ("confirmation_batch", "confirm_screen", 8),
        ("screening_episodes", "eval_screen", 2),
        ("max_eval_fraction", "eval_share", 0.5),
    ],
)
def test_clear_names_of_training_keys_are_understood_everywhere(clear: str, key: str, value: float) -> None:
    base = preset_for("CartPole-v1")
    for manifest in (
        apply_overrides(base, {clear: value}),
        apply_overrides(base, {f"training.{clear}": value}),
        manifest_from({**base.as_dict(), "training": {**_without(base, key), clear: value}}),
    ):
        assert vars(manifest.training)[key] == value
        assert manifest.hash() == apply_overrides(base, {key: value}).hash()
    with pytest.raises(ConfigError, match=f"training.{clear} and training.{key} are the same key"):
        manifest_from({"training": {clear: value, key: value}})


def _without(manifest: Any, key: str) -> dict[str, Any]:
    return {name: value for name, value in manifest.as_dict()["training"].items() if name != key}


def test_a_file_overrides_the_preset_of_its_environment_and_aliases_work(tmp_path: Path) -> None:
    text = (
        "env_id: LunarLander-v3\nalgorithm: {name: dqn, learning_rate: 5e-4}\ntraining: {total_timesteps: 2e5}\n"
        "selection_strategy: {tournament_size: 3}\nmutation: {rl_hp_selection: {learning_rate: {min: 1e-4, max: 1}}}\n"
    )
    manifest = load_manifest(write(tmp_path, text))
    assert (manifest.algorithm.lr, manifest.training.max_steps) == (5e-4, 200_000)
    assert manifest.tournament_selection.tournament_size == 3
    assert list(manifest.mutation.rl_hp_selection) == ["lr"]  # the file's list replaces the preset's
    assert manifest.training.train_max_episode_steps == 400  # from the preset


def test_a_dumped_manifest_is_rerunnable(tmp_path: Path) -> None:
    manifest = apply_sets(preset_for("MountainCar-v0"), ["pop_size=3", "target_score=null"])
    assert load_manifest(write(tmp_path, dump_yaml(manifest))) == manifest


SETS = [
    ("training.popsize=3", "--set: training.popsize is not a known key. Did you mean 'pop_size'?"),
    ("training.elitism=true", "--set: training.elitism is not a known key; elitism is one of the section tournament_"),
    ("algorithm.eval_steps=3", "eval_steps is one of the section training. fix: training.eval_steps."),
    ("popsize=3", "--set: popsize is not a known key. Did you mean 'pop_size'?"),
    ("learning_rat=3", "--set: learning_rat is not a known key. Did you mean 'learning_rate'?"),
    ("trainin.pop_size=3", "--set: trainin.pop_size is not a known key. Did you mean 'training.pop_size'?"),
    ("name=x", "--set: name is ambiguous: algorithm.name, environment.name."),
    ("training=3", "--set: training is a section. fix:"),
    ("pop_size", "--set 'pop_size' is not KEY=VALUE. fix:"),
    ("pop_size=-1", "--set: training.pop_size must be an integer of at least 1; got -1."),
    ("qqqq=1", "--set: qqqq is not a known key; DQN takes batch_size, lr,"),
]


@pytest.mark.parametrize(("text", "message"), SETS, ids=[s[0] for s in SETS])
def test_a_mistake_in_a_setting_is_named(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply_sets(preset_for("CartPole-v1"), [text])
    assert message in str(caught.value)


def test_every_unknown_key_of_several_settings_is_named() -> None:
    with pytest.raises(ConfigError) as raised:
        apply_sets(preset_for("CartPole-v1"), ["popsize=3", "tau=0.1", "trainin.pop_size=3"])
    keys = [line.partition(" is not a known key")[0] for line in str(raised.value).splitlines()]
    assert keys == ["--set: popsize", "--set: trainin.pop_size"]


def test_settings_are_yaml_and_reach_nested_keys() -> None:
    base = preset_for("CartPole-v1")
    sets = ["network.encoder_config.hidden_size=[32, 32]", "double=false", "mutation.rl_hp_selection.lr.max=0.05"]
    changed = apply_sets(base, [*sets, "learning_rate=1e-3"])
    assert changed.network.encoder_config.hidden_size == [32, 32]
    assert changed.algorithm.double is False
    assert changed.algorithm.lr == 1e-3
    assert changed.mutation.rl_hp_selection["lr"].max == 0.05
    assert base.algorithm.double is True
    assert changed.hash() != base.hash()


@pytest.mark.thorough
@settings(deadline=None)  # the first call imports
@given(st.integers(1, 10**9), st.floats(1e-8, 1, exclude_min=True))
def test_any_value_in_range_survives_yaml(steps: int, lr: float) -> None:
    manifest = apply_overrides(preset_for("CartPole-v1"), {"max_steps": steps, "lr": lr})
    assert manifest_from(yaml.safe_load(dump_yaml(manifest))) == manifest


@pytest.mark.thorough
def test_the_hash_is_the_same_in_another_process() -> None:
    code = "from agilerl.config import preset_for; print(preset_for('CartPole-v1').hash())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert found == preset_for("CartPole-v1").hash()


def test_the_manifest_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValueError, match="frozen"):
        preset_for("CartPole-v1").training.seed = 3  # type: ignore[misc]


def test_every_error_of_this_package_is_caught_as_one_type() -> None:
    with pytest.raises(AgileRLError):
        manifest_from({"training": {"seed": "x"}})


def test_an_algorithm_without_a_preset_there_takes_the_general_one_with_the_budget_of_the_environment() -> None:
    own, other = preset_for("LunarLanderContinuous-v3"), preset_for("LunarLanderContinuous-v3", "DDPG")
    assert own.algorithm.name == "TD3"
    assert (other.algorithm.name, other.training.target_score) == ("DDPG", own.training.target_score)
    assert other.training.max_steps == own.training.max_steps
    assert set(other.mutation.rl_hp_selection) == {"lr_actor", "lr_critic", "batch_size"}
    rainbow = preset_for("LunarLander-v3", "rainbow dqn")
    assert (rainbow.replay_buffer.prioritized, rainbow.replay_buffer.n_step) == (True, 3)


def test_where_nothing_names_an_algorithm_it_is_the_one_that_needs_no_tuning() -> None:
    from agilerl.api import build_manifest

    assert build_manifest("BipedalWalkerHardcore-v3").algorithm.name == "PPO"
    assert build_manifest("CliffWalking-v1").algorithm.name == "PPO"
    assert build_manifest("BipedalWalkerHardcore-v3", "TD3").algorithm.name == "TD3"
    assert build_manifest("mine", env=gym.make("Pendulum-v1")).algorithm.name == "PPO"
    assert build_manifest("mine", env=lambda: gym.make("Pendulum-v1")).algorithm.name == "PPO"
    assert build_manifest("CartPole-v1").algorithm.name == "DQN", "its preset"
    assert build_manifest("CartPole-v1", preset=False).algorithm.name == "PPO"
    for env_id, algorithm in {
        "BipedalWalkerHardcore-v3": "PPO", "CartPole-v1": "DQN", "mpe2.simple_v3": "MADDPG", "reasoning/none": "GRPO",
    }.items():  # fmt: skip
        assert on_preset({"environment": env_id}).algorithm.name == algorithm


class Team:
    possible_agents = ("a", "b")


class PreferenceGym:
    pass


def test_what_is_handed_over_names_the_algorithm_beside_a_configuration_too() -> None:
    from agilerl.api import build_manifest

    for config in (None, {}, {"training": {"pop_size": 2}}):
        assert build_manifest("mine", env=Team(), config=config).algorithm.name == "MADDPG"
        assert build_manifest("mine", env=PreferenceGym(), config=config).algorithm.name == "DPO"
        assert build_manifest("mine", "IPPO", env=Team(), config=config).algorithm.name == "IPPO"
    assert build_manifest("mine", env=Team(), config={"algorithm": "MATD3"}).algorithm.name == "MATD3"


@pytest.mark.parametrize(
    "wrong", [{"training": {"eps_start": 0.5}}, {"replay_buffer": {"max_size": 1000}}, {"algorithm": {"tau": 0.01}}]
)
def test_a_setting_of_another_algorithm_says_which_one_learns_by_default(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        on_preset({"environment": "FrozenLake-v1", **wrong}, "mine.yaml")
    problem, chosen = str(raised.value).splitlines()
    assert "PPO" in problem
    assert chosen == "mine.yaml: names no algorithm, so PPO learns. fix: algorithm: DQN, say."
    assert on_preset({"environment": "FrozenLake-v1", "algorithm": "DQN"} | {"training": {"eps_start": 0.5}})
    with pytest.raises(ConfigError) as other:
        on_preset({"environment": "FrozenLake-v1", "training": {"pop_size": 0}}, "PPO.yaml")
    assert len(str(other.value).splitlines()) == 1, "which algorithm learns has nothing to do with it"


NAMED_PLACES = [
    ({"training.pop_size": 2}, "training.pop_size is a key of the section training. fix: training: {pop_size: ...}."),
    ({"lr": 2}, "lr is a key of the section algorithm. fix: algorithm: {lr: ...}."),
    (
        {"rl_hp_mut": 2},
        "rl_hp_mut is a key of the section mutation.probabilities. fix: mutation: {probabilities: {rl_hp_mut: ...}}.",
    ),
    ({"hidden_size": [2]}, "hidden_size is not a known key at the top level."),  # of two sections
    ({"algo": "ppo", "algorithm": "dqn"}, "algo and algorithm.name are the same key."),
    ({"algorithm": "PP0"}, "mine.yaml: algorithm.name: unknown algorithm 'PP0'. Did you mean 'PPO'?"),
    ({"environment": 3}, "mine.yaml: environment must be a section of keys; got 3."),
]


@pytest.mark.parametrize(("wrong", "message"), NAMED_PLACES, ids=[next(iter(wrong)) for wrong, _ in NAMED_PLACES])
def test_a_key_at_the_wrong_place_is_told_where_it_belongs(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(AgileRLError) as raised:
        on_preset({"environment": "FrozenLake-v1", **wrong}, "mine.yaml")
    assert message in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_name_of_null_is_left_out_of_a_file_and_refused_of_a_setting() -> None:
    plain = on_preset({"environment": "FrozenLake-v1"})
    assert on_preset({"environment": "FrozenLake-v1", "algorithm": {"name": None}}) == plain
    assert on_preset({"environment": "FrozenLake-v1", "algo": None}) == plain
    with pytest.raises(ConfigError, match=r"--set: algorithm\.name must be a name; got None\. fix: leave"):
        apply_sets(plain, ["algo=null"])


def test_without_a_preset_the_target_is_that_of_the_registration() -> None:
    from agilerl.api import build_manifest

    def target(env_id: str, **more: Any) -> float | None:
        return build_manifest(env_id, **more).training.target_score

    assert target("FrozenLake-v1") == 0.7
    assert target("CliffWalking-v1") is None, "its registration names none"
    assert target("mine", env=gym.make("FrozenLake-v1")) == 0.7
    assert target("CartPole-v1", preset=False) == 475.0
    assert target("LunarLander-v3") == 200.0
    assert target("FrozenLake-v1", overrides={"target_score": None}) is None
    assert target("FrozenLake-v1", config={}) == 0.7
    assert target("mine", config={}, env=gym.make("FrozenLake-v1")) == 0.7
    assert target("FrozenLake-v1", config={"training": {"target": None}}) is None
    assert target("FrozenLake-v1", config={"training": {"target_score": 0.5}}) == 0.5
    whole = build_manifest("FrozenLake-v1", overrides={"target_score": None}).as_dict()
    assert target("FrozenLake-v1", config=whole) is None, "a complete manifest is reproduced"
    with pytest.raises(ConfigError, match="preset=False leaves out the preset; config has settings"):
        build_manifest("CartPole-v1", preset=False, config={"training": {"pop_size": 2}})


def test_who_sets_chances_of_mutations_gets_tournaments() -> None:
    from agilerl.api import build_manifest

    assert build_manifest("FrozenLake-v1").evolution.scheme == "race"
    mixed = build_manifest("FrozenLake-v1", overrides={"rl_hp_mut": 0.9})
    assert (mixed.evolution.scheme, mixed.mutation.probabilities.rl_hp_mut) == ("tournament", 0.9)
    assert build_manifest("FrozenLake-v1", overrides={"tournament_size": 3}).evolution.scheme == "tournament"
    written = build_manifest("FrozenLake-v1", config={"mutation": {"probabilities": {"rl_hp_mut": 0.9}}})
    assert written.evolution.scheme == "tournament"
    raced = build_manifest("CartPole-v1", overrides={"scheme": "race"})
    assert raced.mutation.probabilities == Probabilities(), "those of the preset mean nothing to a race"
    with pytest.raises(
        ConfigError, match=r"mutation\.probabilities acts only with evolution\.scheme=tournament; got ev"
    ):
        build_manifest("FrozenLake-v1", overrides={"rl_hp_mut": 0.9, "scheme": "race"})


@pytest.mark.parametrize(
    "setting", [{"eval_members": 1}, {"scheme": "race"}, {"scheme": "halving", "judge": "training"}]
)
@pytest.mark.parametrize("algo", ["CQN", "BC", "GRPO", "DPO", "SFT"])
def test_without_training_episodes_none_can_rank_members(algo: str, setting: dict[str, Any]) -> None:
    manifest = manifest_from({"algorithm": {"name": algo}})
    with pytest.raises(ConfigError, match=f"ranks members by the episodes that they train in, and {algo} learns from"):
        apply_overrides(manifest, setting)
    halving = apply_overrides(manifest, {"scheme": "halving"})
    assert halving.evolution.judge == "evaluation"


@pytest.mark.parametrize(
    ("setting", "scheme"),
    [
        ("survivors=2", "tournament"),
        ("certainty=2.0", "halving"),
        ("until=0.5", "race"),
        ("frequencies=[1,2]", "pb2"),
        ("interval=2", "mf_pbt"),
        ("interval=2", "race"),
    ],
)
def test_what_a_scheme_does_not_read_is_named(setting: str, scheme: str) -> None:
    name = setting.partition("=")[0]
    with pytest.raises(
        ConfigError, match=rf"evolution\.{name}.* acts only with .*; got evolution.scheme={scheme}\. fix: "
    ):
        apply_sets(
            manifest_from({"algorithm": {"name": "PPO"}}), [f"evolution.scheme={scheme}", f"evolution.{setting}"]
        )


@pytest.mark.parametrize(
    "setting",
    [
        "tournament_selection.tournament_size=3",
        "tournament_selection.elitism=false",
        "mutation.mutate_elite=true",
        "mutation.mutation_sd=0.2",
    ],
)
def test_settings_of_tournaments_bring_tournaments_and_are_refused_beside_another_scheme(setting: str) -> None:
    name = setting.partition("=")[0]
    race = preset_for("FrozenLake-v1", "PPO")
    assert race.evolution.scheme == "race"
    tournaments = apply_sets(race, [setting])
    assert tournaments.evolution.scheme == "tournament"
    for scheme in ("race", "halving", "mf_pbt"):
        message = rf"acts only with evolution\.scheme=tournament; got .*={scheme}\. .* leave {re.escape(name)} out"
        with pytest.raises(ConfigError, match=message):
            apply_sets(race, [setting, f"evolution.scheme={scheme}"])
    again = apply_sets(tournaments, ["evolution.scheme=race"])  # those of a preset, or asked for before, give way
    assert (again.mutation.mutation_sd, again.tournament_selection) == (0.1, race.tournament_selection)
    assert not again.mutation.mutate_elite


def test_settings_that_act_only_beside_another_are_named() -> None:
    dqn = manifest_from({"algorithm": {"name": "DQN"}})
    with pytest.raises(
        ConfigError, match=r"replay_buffer\.alpha=0\.4 acts only with replay_buffer\.prioritized=true; got"
    ):
        apply_sets(dqn, ["replay_buffer.alpha=0.4"])
    with pytest.raises(
        ConfigError, match=r"training\.share=shard acts only with training\.shards=2 or more; .* fix: train"
    ):
        apply_sets(dqn, ["training.share=shard"])
    apply_sets(dqn, ["replay_buffer.alpha=0.4", "replay_buffer.prioritized=true"])
    apply_sets(dqn, ["training.share=shard", "training.shards=2"])


@pytest.mark.parametrize("algo", ["PPO", "MAPPO", "CQN", "GRPO"])
def test_updates_that_overlap_with_steps_are_those_of_replay(algo: str) -> None:
    with pytest.raises(ConfigError, match=rf"training\.overlap: means nothing to {algo}, which"):
        apply_sets(manifest_from({"algorithm": {"name": algo}}), ["training.overlap=true"])


def test_problems_between_keys_are_named_together() -> None:
    sets = ["evolution.scheme=pbt", "evolution.certainty=2.0", "evolution.max_lag=4", "training.fitness=fqe"]
    with pytest.raises(ConfigError) as raised:
        apply_sets(manifest_from({"algorithm": {"name": "PPO"}}), sets)
    found = [line.removeprefix("--set: ").partition(" fix: ") for line in str(raised.value).splitlines()]
    fixes = {
        "evolution.scheme=pbt": "mutation.rl_hp_selection", "evolution.certainty": "evolution.certainty",
        "training.fitness": "training.fitness", "evolution.max_lag": "evolution.max_lag",
    }  # fmt: skip
    assert len(found) == len(fixes)
    for name, key in fixes.items():
        (fix,) = [fix for problem, _, fix in found if problem.startswith(name)]
        assert key in fix


def test_rules_between_keys_know_the_presets_values(tmp_path: Path) -> None:
    """The preset of CartPole-v1 has the ranges that `pbt` needs, and an `eps_end` above an `eps_start` of 0.001."""
    path = write(tmp_path, "environment: {name: CartPole-v1}\nalgorithm: DQN\nevolution: {scheme: pbt}\n")
    assert load_manifest(path).evolution.scheme == "pbt"
    assert problems_of(path) == []
    path = write(tmp_path, "environment: {name: CartPole-v1}\nalgorithm: DQN\ntraining: {eps_start: 0.001}\n")
    with pytest.raises(ConfigError, match=r"^my\.yaml: training\.eps_end=0\.04 must be") as raised:
        load_manifest(path)
    (problem,) = problems_of(path)
    assert str(problem) == str(raised.value).removeprefix("my.yaml: ")


def test_every_problem_of_a_schedule_is_named() -> None:
    changes = [
        {"env_steps": 5000, "kind": "rl_hp", "after": {"lr": -1.0, "gama": 0.9}},
        {"env_steps": 4000, "kind": "activation", "after": "relo"},
        {"env_steps": 6000, "kind": "architecture"},
        {"env_steps": 7000, "kind": "rl_hp", "after": 3},
    ]
    one = {"pop_size": 1}
    with pytest.raises(ConfigError) as raised:
        manifest_from({"algorithm": "DQN", "evolution": {"schedule": changes}, "training": one})
    problems = str(raised.value)
    for part in ("in the order", "lr must", "5000 steps: gama is not", "'relo'", "after 6000 steps: `path`", "got 3"):
        assert part in problems, problems
    assert len(problems.splitlines()) == 6
    assert "fix: after={lr: " in problems


def test_default_values_of_removed_settings_are_read_and_others_are_unknown() -> None:
    old = {"objective": "score", "explore": True, "parents": "best", "then": None}
    manifest = manifest_from({"algorithm": {"name": "PPO"}, "evolution": {"scheme": "race", **old}})
    assert manifest.hash() == manifest_from({"algorithm": {"name": "PPO"}, "evolution": {"scheme": "race"}}).hash()
    for name, value in {"explore": False, "parents": "random", "then": "pbt", "objective": "score_per_second"}.items():
        with pytest.raises(ConfigError, match=rf"evolution\.{name}"):
            manifest_from({"algorithm": {"name": "PPO"}, "evolution": {"scheme": "race", name: value}})


def test_fixes_fit_the_algorithm_and_halving_its_founders() -> None:
    with pytest.raises(ConfigError, match=r"names none\. fix: .* mutation\.rl_hp_selection\.lr_actor="):
        apply_sets(manifest_from({"algorithm": {"name": "SAC"}}), ["evolution.scheme=pbt"])
    with pytest.raises(ConfigError, match=r"survivors=9 of halving must not exceed .*pop_size=4\. fix: .*survivors=4"):
        apply_sets(manifest_from({"algorithm": {"name": "PPO"}}), ["evolution.scheme=halving", "survivors=9"])


def test_widths_are_of_spread_founders_and_in_any_order() -> None:
    spread = apply_sets(manifest_from({}), ["evolution.founders=spread", "evolution.widths=[128,32]"])
    assert spread.evolution.widths == (32, 128)
    with pytest.raises(ConfigError, match=r"evolution\.widths acts only with evolution\.founders=spread; got"):
        apply_sets(manifest_from({}), ["evolution.widths=[32,128]"])


def test_equal_founders_are_asked_for_in_place_of_the_widths_of_a_preset() -> None:
    preset = preset_for("an environment without one", "SAC", general=True)
    assert preset.evolution.widths == (64, 256)
    assert apply_sets(preset, ["evolution.founders=equal"]).evolution.widths is None


@pytest.mark.parametrize("scheme", ["pbt", "pb2", "mf_pbt"])
def test_schemes_that_change_hyperparameters_need_ranges(scheme: str) -> None:
    ranges = ["mutation.rl_hp_selection.lr={min: 1.0e-4, max: 1.0e-2}"]
    plain = manifest_from({"algorithm": {"name": "PPO"}})
    with pytest.raises(ConfigError, match=rf"scheme={scheme} changes hyperparameters, and .* names none\. fix: "):
        apply_sets(plain, [f"evolution.scheme={scheme}"])
    assert apply_sets(plain, [f"evolution.scheme={scheme}", *ranges]).evolution.scheme == scheme
    with pytest.raises(ConfigError, match=rf"acts only with evolution.scheme=tournament; got .*={scheme}\. fix"):
        apply_sets(plain, [f"evolution.scheme={scheme}", *ranges, "mutation.probabilities.arch_mut=0.9"])


def test_settings_of_population_based_training_leave_the_hashes_of_earlier_manifests_alone() -> None:
    """Hashes by the version before it had `interval`."""
    assert manifest_from({"evolution": {"scheme": "race"}}).hash() == "2a6fadeffe2f97e0"
    assert manifest_from({"evolution": {"founders": "spread"}}).hash() == "d9be76f68cd4f961"
    pbt = manifest_from({"evolution": {"scheme": "pbt"}, "mutation": {"rl_hp_selection": {"lr": {"min": 1, "max": 2}}}})
    assert apply_sets(pbt, ["evolution.interval=2"]).hash() != pbt.hash()


def test_a_manifest_describes_the_encoder_of_other_than_vectors() -> None:
    from agilerl.training.manifest.resolve import net_config

    images, vectors = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), gym.spaces.Box(-1, 1, (3,))
    plain = manifest_from({"network": {}})
    assert net_config(plain, images)["encoder_config"] is None
    assert net_config(plain, vectors)["encoder_config"]["hidden_size"] == [64]
    given = manifest_from({"network": {"encoder": {"channel_size": [8]}}})
    assert net_config(given, images)["encoder_config"] == {"channel_size": [8]}
    dense = manifest_from({"network": {"encoder_config": {"hidden_size": [8]}}})
    with pytest.raises(ConfigError, match=r"fix: network\.encoder"):
        net_config(dense, images)


def test_a_whole_record_is_not_completed_by_a_preset_that_has_learned_more(tmp_path: Path) -> None:
    """An earlier version did not know `eval_screen`, which today's preset of CartPole-v1 sets."""
    today = preset_for("CartPole-v1", "DQN")
    assert today.training.eval_screen == 4
    earlier = today.as_dict()
    del earlier["training"]["eval_screen"]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(earlier))
    assert load_manifest(tmp_path / "config.yaml").training.eval_screen == 0
    for section, key in (("training", "evo_steps"), ("mutation", None)):  # what somebody has written
        mine = {**earlier, "training": dict(earlier["training"])}
        del (mine[section] if key else mine)[key or section]
        (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
        assert load_manifest(tmp_path / "mine.yaml").training.eval_screen == 4, section
