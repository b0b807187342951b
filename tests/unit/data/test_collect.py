"""Data sets made here: that they hold what the environment did, how they are written, and how they are described."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from agilerl.core.rng import Purpose, seeds
from agilerl.data.dataset import read_dataset
from agilerl.data.describe import describe, lines
from agilerl.data.recording import (
    Recording,
    greedy_policy,
    joined,
    noisy_policy,
    random_policy,
    record,
    write_dataset,
)
from agilerl.errors import ConfigError, EnvError, NotAvailableYetError, RunError
from agilerl.training import datasets
from agilerl.training.datasets import POLICIES, Maker
from agilerl.utils.utils import make_vect_envs

COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")


def recorded(env_id: str, rows: int, lanes: int, seed: int = 3, **more: Any) -> Recording:
    env: Any = make_vect_envs(env_id, num_envs=lanes)
    act = random_policy(env.single_action_space, np.random.default_rng(1))
    found = record(act, env.replicate(1), rows, seed, **more)
    env.close()
    return found


# --- what is recorded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1"])
def test_recorded_steps_are_those_of_gymnasiums_environment(env_id: str) -> None:
    arrays = recorded(env_id, 230, lanes=2).arrays
    assert set(arrays) == set(COLUMNS)
    env = gym.make(env_id)
    obs, _ = env.reset(seed=int(seeds(3, Purpose.ENVIRONMENT, 2)[0]))
    for row in range(115):  # the share of the first lane
        assert np.array_equal(arrays["observations"][row], obs)
        obs, reward, terminated, truncated, _ = env.step(arrays["actions"][row])
        assert np.array_equal(arrays["next_observations"][row], obs)
        assert (arrays["rewards"][row], arrays["terminals"][row], arrays["timeouts"][row]) == (
            reward,
            terminated,
            truncated,
        )
        obs = env.reset()[0] if terminated or truncated else obs


def test_episodes_are_whole_but_for_the_last_one() -> None:
    found = recorded("CartPole-v1", 100, lanes=4)
    arrays, over = found.arrays, found.arrays["terminals"] | found.arrays["timeouts"]
    assert len(found) == 100
    assert found.cut == 0
    assert not arrays["timeouts"].any()
    goes_on = np.array(
        [np.array_equal(a, b) for a, b in zip(arrays["observations"][1:], arrays["next_observations"], strict=False)]
    )
    assert np.array_equal(goes_on, ~over[:-1])


def test_episodes_that_nothing_ends_are_cut_and_counted() -> None:
    found = recorded("Pendulum-v1", 40, lanes=4, longest=5)  # a lane has ten rows, and five more to end its episode
    assert found.cut == 2
    assert np.flatnonzero(found.arrays["timeouts"]).tolist() == [14, 29]  # the third lane has the last ten


def test_parts_are_joined_with_an_end_between_them() -> None:
    one, two = (recorded("CartPole-v1", rows, lanes=1) for rows in (5, 7))
    whole = joined([one, two])
    assert np.flatnonzero(whole.arrays["timeouts"]).tolist() == [4]
    assert (len(whole), whole.cut) == (12, 1)


def test_equal_seeds_record_equal_steps_and_other_parts_others() -> None:
    one, same, other = (recorded("CartPole-v1", 50, lanes=2, part=part).arrays for part in (0, 0, 1))
    assert all(np.array_equal(one[name], same[name]) for name in COLUMNS)
    assert not np.array_equal(one["observations"], other["observations"])


def test_random_actions_are_legal_and_of_the_space() -> None:
    rng, mask = np.random.default_rng(0), np.array([[0, 1, 1], [1, 0, 0]] * 50, bool)
    choices = random_policy(gym.spaces.Discrete(3, start=1), rng)(np.zeros((100, 2)), mask)
    assert set(choices[::2].tolist()) == {2, 3}
    assert set(choices[1::2].tolist()) == {1}
    both = random_policy(gym.spaces.MultiDiscrete([2, 3]), rng)(np.zeros((200, 2)), None)
    assert {tuple(row) for row in both.tolist()} == {(a, b) for a in range(2) for b in range(3)}
    box = gym.spaces.Box(np.array([0, -4], np.float32), np.array([10, 4], np.float32))
    drawn = random_policy(box, rng)(np.zeros((4000, 1)), None)
    assert drawn.mean(0) == pytest.approx([5, 0], abs=4 * 10 / np.sqrt(12 * 4000))  # four standard errors
    assert drawn.dtype == np.float32
    with pytest.raises(NotAvailableYetError, match="no random actions for MultiBinary"):
        random_policy(gym.spaces.MultiBinary(3), rng)(np.zeros((1, 1)), None)


def test_noise_is_a_share_of_choices_and_half_ranges_of_numbers() -> None:
    def always(obs: Any, mask: Any) -> np.ndarray:
        return np.zeros(len(obs), np.int64)

    rng, space = np.random.default_rng(0), gym.spaces.Discrete(4)
    taken = noisy_policy(always, space, 0.4, rng)(np.zeros((10_000, 1)), None)
    assert (taken != 0).mean() == pytest.approx(0.4 * 3 / 4, abs=0.02)
    box = gym.spaces.Box(np.array([0], np.float32), np.array([10], np.float32))
    moved = noisy_policy(lambda obs, mask: np.full((len(obs), 1), 5.0), box, 0.1, rng)(np.zeros((10_000, 1)), None)
    assert moved.std() == pytest.approx(0.5, rel=0.05)
    assert noisy_policy(always, space, 0.0, rng) is always
    edge = noisy_policy(lambda obs, mask: np.full((len(obs), 1), 10.0), box, 0.1, rng)(np.zeros((100, 1)), None)
    assert edge.max() == 10.0
    with pytest.raises(ConfigError, match=r"noise must be in \[0, 1\]"):
        noisy_policy(always, space, 1.5, rng)
    with pytest.raises(ConfigError, match="has none"):
        noisy_policy(always, gym.spaces.Box(-np.inf, np.inf, (1,)), 0.1, rng)


def test_policies_with_a_memory_are_refused() -> None:
    with pytest.raises(NotAvailableYetError, match="with a memory cannot record"):
        greedy_policy(SimpleNamespace(algo="PPO", is_recurrent=True))


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".h5", ".npz"])
def test_equal_contents_are_equal_files_that_are_read_back(suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    arrays, about = recorded("CartPole-v1", 60, lanes=2).arrays, {"env_id": "CartPole-v1", "scores": {"random": 22.2}}
    one, two = tmp_path / f"one{suffix}", tmp_path / f"two{suffix}"
    for path in (one, two):
        write_dataset(path, arrays, about)
    assert one.read_bytes() == two.read_bytes()
    data = read_dataset(one)
    assert (data.env_id, dict(data.about), data.missing) == ("CartPole-v1", about, ())
    assert np.array_equal(data.obs, arrays["observations"])
    assert np.array_equal(data.terminated, arrays["terminals"])
    assert len(data) == 60
    with pytest.raises(ConfigError, match=r"is there already\. fix: another --out"):
        write_dataset(one, arrays, about)


def test_observations_of_several_parts_go_to_hdf5_alone(tmp_path: Path) -> None:
    pytest.importorskip("h5py")
    rows = {"rewards": np.zeros(3), "terminals": np.ones(3, bool), "actions": np.zeros(3, int)}
    arrays = {**rows, "observations": {"near": np.eye(3), "far": (np.ones((3, 1)), np.zeros((3, 2)))}}
    write_dataset(tmp_path / "data.h5", arrays, {})
    data = read_dataset(tmp_path / "data.h5")
    assert np.array_equal(data.obs["near"], np.eye(3))
    assert data.obs["far"]["tuple_obs_1"].shape == (3, 2)
    with pytest.raises(ConfigError, match=r"cannot hold observations of several parts. fix: --out FILE.h5"):
        write_dataset(tmp_path / "data.npz", arrays, {})


def test_a_name_of_no_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends in \.h5, \.hdf5, \.npz"):
        write_dataset(tmp_path / "data.csv", {}, {})


# --- described --------------------------------------------------------------------------------------------------------


def test_a_description_counts_what_is_there() -> None:
    data = read_dataset(
        {
            "observations": np.array([[0.0, 7.0], [1, 7], [2, 7], [3, 7], [4, 7], [5, 7]]),
            "actions": np.array([0, 1, 1, 1, 0, 1]),
            "rewards": np.array([1.0, 2, 3, 4, 5, 6]),
            "terminals": np.array([0, 1, 0, 0, 0, 0], bool),
            "timeouts": np.array([0, 0, 0, 1, 0, 0], bool),
            "next_observations": np.zeros((6, 2)),
        }
    )
    found = describe(data)
    assert found["rows"] == 6
    assert found["episodes"] == {"count": 3, "terminated": 1, "cut": 1, "open": 1}
    assert found["returns"] == {"mean": 5.0, "least": 3.0, "25%": 4.0, "median": 5.0, "75%": 6.0, "most": 7.0}
    assert found["lengths"]["mean"] == 2.0
    assert found["actions"] == {"kind": "choices", "shares": [{"0": 1 / 3, "1": 2 / 3}], "components": 1}
    first, constant = found["observations"]["obs"]["components"]
    assert (first["least"], first["most"], first["mean"], first["at_most"]) == (0.0, 5.0, 2.5, 1 / 6)
    assert constant["least"] == constant["most"] == 7.0
    text = "\n".join(lines(found, "data.h5"))
    assert "data.h5   6 rows, 3 episodes" in text
    assert "1 terminated, 1 cut off, 1 incomplete at the end" in text
    assert "never changes" in text
    assert "missing   nothing" in text


def test_a_description_says_what_is_missing() -> None:
    rows = {"observations": np.zeros((3, 1)), "actions": np.array([[0.5], [1.5], [2.5]]), "rewards": np.zeros(3)}
    found = describe(read_dataset({**rows, "terminals": np.zeros(3, bool)}))
    assert (found["missing"], found["left_out"]) == (["timeouts", "next_observations"], 1)
    assert found["actions"]["components"][0]["most"] == 1.5  # the last row is left out
    assert found["episodes"] == {"count": 1, "terminated": 0, "cut": 1, "open": 0}
    assert "steps without a successor, left out: 1; no timeouts; no next_observations" in "\n".join(lines(found, "x"))


# --- medium and expert ------------------------------------------------------------------------------------------------


class Rule:
    """An agent that balances a pole by a rule."""

    algo, is_recurrent = "rule", False

    def __init__(self, *weights: float) -> None:
        self.weights = np.array(weights)

    def set_training_mode(self, training: bool) -> None:
        pass

    def _greedy(self, obs: np.ndarray, mask: Any = None) -> np.ndarray:
        return (obs @ self.weights > 0).astype(np.int64)


WORST, POOR, FAIR, BEST = Rule(0, 0, 0, 0), Rule(0, 0, 1, 0), Rule(0, 0, 0, 1), Rule(0.1, 0.3, 1, 0.7)
# about 9, 42, 200 and 500 steps: 37 % of the way from random play (22) to the last is the third's


def scripted(monkeypatch: pytest.MonkeyPatch, bests: list[Rule | None], best: Rule, **facts: Any) -> list[Any]:
    """A training whose generations have these best agents (None: no new one), and how it was called."""
    calls: list[Any] = []

    def run_training(manifest: Any, callbacks: Any = (), **more: Any) -> Any:
        calls.append((manifest, more))
        for agent in bests:
            for callback in callbacks:
                if agent is not None:
                    callback.on_best(agent)
                callback.on_generation(None)
        return SimpleNamespace(best=best, interrupted=False, path=None, **facts)

    monkeypatch.setattr(datasets, "run_training", run_training)
    return calls


def test_medium_is_the_first_best_agent_a_third_of_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = scripted(monkeypatch, [WORST, None, POOR, FAIR, BEST], BEST)
    said: list[str] = []
    maker = Maker("CartPole-v1", seed=5, settings=["training.max_steps=77"], say=said.append)
    trained = maker.trained
    assert maker.trained is trained  # once
    assert len(calls) == 1
    assert (calls[0][0].training.seed, calls[0][0].training.max_steps) == (5, 77)
    assert trained.expert == 500.0
    assert trained.random == pytest.approx(22, abs=3)
    assert trained.share == (trained.medium - trained.random) / (500.0 - trained.random)
    assert trained.medium_agent is FAIR
    assert trained.generation == 4
    assert 1 / 3 <= trained.share <= 1 / 2
    assert any("37% of the way, the best agent after generation 4" in line for line in said)


def test_where_a_run_has_leapt_over_medium_the_nearest_to_it_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [WORST, POOR, BEST], BEST)
    trained = Maker("CartPole-v1", seed=5).trained
    assert trained.medium_agent is POOR
    assert trained.generation == 2
    assert trained.share == pytest.approx(0.04, abs=0.02)


def test_mixed_is_a_third_of_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    scripted(monkeypatch, [POOR, BEST], BEST)
    maker = Maker("CartPole-v1", seed=1)
    data = read_dataset(maker.make("mixed", 1001, tmp_path / "data.npz"))
    assert len(data) == 1001
    assert data.about["policy"] == "mixed"
    assert data.about["scores"]["expert"] == 500.0
    returns = data.returns()
    assert returns[0] < 100  # random comes first
    assert data.reward[-333:].sum() == 333.0
    assert 500.0 not in returns[:10]


def test_a_run_that_has_not_learned_is_no_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, [WORST], WORST)
    with pytest.raises(RunError, match=r"has not learned CartPole-v1: .* fix: a larger budget"):
        _ = Maker("CartPole-v1").trained


def test_what_cannot_be_recorded_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="several agents"):
        Maker("mpe2.simple_spread_v3")
    with pytest.raises(EnvError, match=r"Did you mean 'CartPole-v1'"):
        Maker("Cartpole-v1")
    maker, out = Maker("CartPole-v1"), tmp_path / "data.npz"
    with pytest.raises(ConfigError, match=r"Did you mean 'random'\?"):
        maker.make("rnadom", 10, out)
    with pytest.raises(ConfigError, match="rows must be an integer of at least 1"):
        maker.make("random", 0, out)
    with pytest.raises(ConfigError, match=r"random has none\. fix: leave --noise out"):
        maker.make("random", 10, out, noise=0.1)
    with pytest.raises(ConfigError, match=r"memory of single steps, and PPO keeps no replay"):
        Maker("CartPole-v1", algo="PPO").make("medium-replay", 10, out)
    with pytest.raises(ConfigError, match=r"RainbowDQN keeps sums .* fix: --algo of another one, or --set replay"):
        Maker("LunarLander-v3", algo="RainbowDQN").make("medium-replay", 10, out)
    assert not out.exists()


def test_an_agent_is_recorded_with_its_name(tmp_path: Path) -> None:
    out = Maker("CartPole-v1", seed=4).make(BEST, 1200, tmp_path / "data.npz", name="a rule", about={"note": 1})
    data = read_dataset(out)
    assert data.returns().tolist() == [500.0, 500.0, 200.0]
    assert {key: data.about[key] for key in ("policy", "note", "seed", "rows", "cut_episodes")} == {
        "policy": "a rule", "note": 1, "seed": 4, "rows": 1200, "cut_episodes": 0,
    }  # fmt: skip


@pytest.mark.slow
def test_medium_replay_is_the_memory_up_to_medium(tmp_path: Path) -> None:
    small = ["training.max_steps=4000", "training.evo_steps=1000", "training.target_score=null"]
    maker = Maker("CartPole-v1", seed=0, settings=small)
    data = read_dataset(maker.make("medium-replay", 3_000, tmp_path / "data.npz"))
    assert len(data) == 3_000
    assert data.about["medium_generation"] == maker.trained.generation
    inside = ~data.ended[:-1]
    assert np.array_equal(data.obs[1:][inside], data.next_obs[:-1][inside])
    fell = (np.abs(data.next_obs[:, 0]) > 2.4) | (np.abs(data.next_obs[:, 2]) > 12 * 2 * np.pi / 360)
    assert np.array_equal(data.terminated, fell)


def test_every_policy_that_is_named_is_explained() -> None:
    assert list(POLICIES) == ["random", "medium", "expert", "mixed", "medium-replay"]
