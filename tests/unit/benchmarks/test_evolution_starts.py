"""What the starts and arms of the evolution benchmark change of the general presets."""

from types import SimpleNamespace
from typing import Any

import pytest

import agilerl
from agilerl.config import apply_overrides
from agilerl.core.checkpoint import encode_tree


@pytest.fixture
def evolution(benchmark_module: Any) -> Any:
    return benchmark_module("evolution")


def config(evolution: Any, pair: str, start: str, arm: str) -> dict[str, Any]:
    manifest = evolution.settings(evolution.PAIRS[pair], evolution.STARTS[start], evolution.ARMS[arm])
    found: dict[str, Any] = manifest.as_dict()
    return found


def spans(found: dict[str, Any]) -> dict[str, tuple[float, float]]:
    return {name: (span["min"], span["max"]) for name, span in found["mutation"]["rl_hp_selection"].items()}


@pytest.mark.parametrize(("start", "factor"), [("good", 1.0), ("lr_low", 0.1), ("lr_high", 10.0)])
def test_a_start_moves_every_rate(evolution: Any, start: str, factor: float) -> None:
    known = config(evolution, "Pendulum-v1:SAC", "good", "fixed")["algorithm"]
    found = config(evolution, "Pendulum-v1:SAC", start, "fixed")["algorithm"]
    for name in ("lr_actor", "lr_critic", "lr_alpha"):
        assert found[name] == pytest.approx(factor * known[name])


def test_ours_has_ranges_of_its_own_and_a_race(evolution: Any) -> None:
    found = config(evolution, "CartPole-v1:DQN", "gamma_low", "ours")
    assert spans(found) == {"lr": (2e-4, 5e-3), "gamma": (0.98, 0.998)}
    assert found["algorithm"]["gamma"] == 0.9
    assert (found["evolution"]["founders"], found["evolution"]["scheme"]) == ("spread", "race")
    fixed = config(evolution, "CartPole-v1:DQN", "gamma_low", "fixed")
    assert fixed["evolution"]["scheme"] == "tournament"
    assert spans(fixed) == spans(found)
    assert spans(config(evolution, "CartPole-v1:DQN", "good", "random"))["lr"] == (1e-4, 1e-2)


def test_random_search_has_the_layers_of_ours(evolution: Any) -> None:
    for pair, widths in (("CartPole-v1:PPO", [64, 1024]), ("Pendulum-v1:SAC", [64, 256]), ("CartPole-v1:DQN", None)):
        found = {arm: config(evolution, pair, "narrow", arm) for arm in ("ours", "random", "fixed")}
        assert {arm: each["evolution"]["widths"] for arm, each in found.items()} == {
            "ours": widths, "random": widths, "fixed": None
        }  # fmt: skip
        assert all(each["network"]["head_config"]["hidden_size"] == [8] for each in found.values())


@pytest.mark.thorough
def test_members_of_random_search_do_not_share_experience(evolution: Any) -> None:
    """Another rate of the first member changes no bit of the others."""
    short = {
        "training.max_steps": 400, "training.evo_steps": 200, "training.evo_first": None, "environment.num_envs": 2,
        "algorithm.batch_size": 16, "training.learning_delay": 0, "training.confirm_episodes": 0,
        "training.eval_episodes": 1,
    }  # fmt: skip
    pair = evolution.PAIRS["CartPole-v1:DQN"]
    manifest = evolution.settings(pair, evolution.STARTS["good"], evolution.ARMS["random"])
    assert (manifest.training.shards, manifest.training.share) == (manifest.training.pop_size, "shard")
    states = []
    for rate in (1e-3, 1e-4):
        config = apply_overrides(manifest, {**short, "algorithm.lr": rate}, "test").as_dict()
        run = agilerl.train(pair.env, config=config, seed=0, evolution=False, out=None, verbose=False)
        states.append([encode_tree(agent.run_state()) for agent in run.population])
    assert [one == other for one, other in zip(*states, strict=True)] == [False, True, True, True]


@pytest.mark.parametrize("arm", ["ours", "random"])
def test_an_off_centre_range_ends_a_tenth_of_a_decade_above_the_good_rate(evolution: Any, arm: str) -> None:
    found = config(evolution, "CartPole-v1:DQN", "off_centre", arm)
    good = config(evolution, "CartPole-v1:DQN", "good", "fixed")["algorithm"]["lr"]
    assert spans(found)["lr"] == (pytest.approx(0.001 * good), pytest.approx(10**0.1 * good))
    assert found["algorithm"]["lr"] == pytest.approx(0.1 * good)


def test_the_key_of_a_run_holds_its_settings(
    evolution: Any, benchmark_module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = benchmark_module("evolution_arms")
    job = evolution.job_of("CartPole-v1:DQN", "good", "ours", 0)
    assert job["key"] == evolution.job_of("CartPole-v1:DQN", "good", "ours", 0)["key"]
    monkeypatch.setitem(evolution.ARMS, "ours", arms.Arm({**arms.RACE, "training.eval_members": 2}, own=True))
    other = evolution.job_of("CartPole-v1:DQN", "good", "ours", 0)["key"]
    assert {name for name in other if other[name] != job["key"][name]} == {"settings"}


def test_every_arm_of_ours_is_a_configuration_from_every_start(evolution: Any) -> None:
    own = [arm for arm in evolution.ARMS.values() if arm.opponent is None]
    found = {
        evolution.settings(evolution.PAIRS["CartPole-v1:PPO"], evolution.STARTS["good"], arm).hash() for arm in own
    }
    assert len(found) > len(own) // 2  # evolution is on or off beside the configuration
    for start in evolution.STARTS.values():
        for pair in evolution.PAIRS.values():
            evolution.settings(pair, start, evolution.ARMS["published"])


def test_operators_have_every_kind_on(benchmark_module: Any) -> None:
    operators = benchmark_module("operators")
    (job,) = operators.jobs_for("CartPole-v1:DQN", [3])
    assert job["config"]["mutation"]["probabilities"] == operators.KINDS
    assert job["key"]["seed"] == 3


def test_choices_know_the_fitness_of_every_member(benchmark_module: Any) -> None:
    """The preset of LunarLander-v3 evaluates two of four."""
    (job,) = benchmark_module("choices").jobs_for("LunarLander-v3:DQN", [3])
    assert job["config"]["training"].get("eval_members") is None
    assert job["config"]["training"].get("target_score") is None


def test_members_are_written_once_where_checkpoints_of_both_budgets_are_due(evolution: Any) -> None:
    clock = evolution.CheckpointClock(120.0, 1_200, 12)
    measurer = evolution.Measurer({"key": {"seed": 0}, "target": 100.0}, clock)
    measurer.test = lambda number: 7.0
    record = SimpleNamespace(population_env_steps=90, evaluation_env_steps=10, members=[])
    measurer.begun -= 10.0
    measurer.on_generation(record)
    assert [(each["by"], "members" in each) for each in measurer.curve] == [("cpu", True), ("steps", False)]
