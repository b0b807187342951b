"""Shards of a population: one result for any number of workers, and for any worker that does a piece."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from inline_workers import InlineWorkers

import agilerl
from agilerl.collect.collector import GenerationPlan, cut
from agilerl.core.checkpoint import encode_tree
from agilerl.errors import ConfigError, RunError
from agilerl.rollouts.episodes import Episodes
from agilerl.training import scheduling
from agilerl.training.dispatch import Dispatcher
from agilerl.training.manifest import workers as manifest_workers
from agilerl.training.manifest.launch import resume_training
from agilerl.workers.executor import Reply
from agilerl.workers.local import Serve

HELD = 130  # vector steps made here: more than two shards have in a generation, fewer than in the whole run
ARCHITECTURE = {"mutation.probabilities.arch_mut": 0.6, "mutation.probabilities.no_mut": 0.1}
SMALL = {"network.latent_dim": 8, "network.encoder_config.hidden_size": [8], "network.head_config.hidden_size": [8]}
SMALL |= {"network.encoder_config.min_mlp_nodes": 4, "network.head_config.min_mlp_nodes": 4}
SHORT = {"num_envs": 4, "eval_episodes": 4, "target_score": None, "confirm_episodes": 4, **SMALL, **ARCHITECTURE}
REPLAY = {**SHORT, "batch_size": 16, "learning_delay": 64, "replay_buffer.max_size": 700}
ONE_RATE = {"mutation.rl_hp_selection": {"lr": {"min": 1e-4, "max": 1e-2}}}
CASES: dict[str, dict[str, Any]] = {
    "dqn": {"env": "CartPole-v1", "algo": "DQN", "steps": 600, "evo_steps": 200, **REPLAY},
    "n-step, prioritised": {
        "env": "CartPole-v1", "algo": "DQN", "steps": 600, "evo_steps": 200, **REPLAY, **ONE_RATE,
        "replay_buffer.n_step": 3, "replay_buffer.prioritized": True,
    },
    "sac": {"env": "Pendulum-v1", "algo": "SAC", "steps": 300, "evo_steps": 100, "eval_steps": 50, **REPLAY},
    "ppo": {"env": "CartPole-v1", "algo": "PPO", "steps": 384, "evo_steps": 128, "learn_step": 64, **SHORT,
            "normalize_rewards": True},
    "maddpg": {
        "env": "mpe2.simple_spread_v3", "algo": "MADDPG", "population": 2, "steps": 300, "evo_steps": 100,
        "num_envs": 4, "learning_delay": 50, "target_score": None, "eval_episodes": 4, "confirm_episodes": 4,
    },
    "recurrent ppo": {
        "env": "CartPole-v1", "algo": "PPO", "steps": 384, "evo_steps": 128, "learn_step": 64, "recurrent": True,
        "num_envs": 4, "eval_episodes": 4, "target_score": None,
        "network.encoder": {"hidden_state_size": 8, "min_hidden_state_size": 4, "max_hidden_state_size": 16},
    },
}  # fmt: skip


def trained(case: str, shards: int, workers: int = 1, seed: int = 0, **more: Any) -> agilerl.Run:
    """A run without files; `workers`: this process included."""
    arguments = {"population": 4, "preset": False, "out": None, "verbose": False, **CASES[case], **more}
    return agilerl.train(**arguments, seed=seed, shards=shards, workers=workers)


def digest(run: agilerl.Run) -> str:
    """Of every member's whole state, the fitness of all generations and the lineage."""
    total = hashlib.sha256(repr((run.history, run.lineage)).encode())
    for agent in run.population:
        total.update(encode_tree(agent.run_state()))
    return total.hexdigest()


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the processes by workers in this process, of a class of its own if given."""

    def use(kind: Any = InlineWorkers) -> None:
        monkeypatch.setattr(manifest_workers, "LocalWorkers", kind)

    use()
    return use


def test_the_cut_of_a_population_is_contiguous_and_even() -> None:
    assert cut(4, 1) == [[0, 1, 2, 3]]
    assert cut(4, 2) == [[0, 1], [2, 3]]
    assert cut(5, 2) == [[0, 1, 2], [3, 4]]
    assert cut(2, 3) == [[0], [1]]


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_a_second_worker_makes_no_difference(case: str, inline: Any) -> None:
    assert digest(trained(case, shards=2, workers=2)) == digest(trained(case, shards=2))


GAMMAS = {
    "evolution.founders": "spread", "mutation.rl_hp_selection": {"gamma": {"min": 0.9, "max": 0.998}},
    "mutation.probabilities.rl_hp_mut": 0.6, "normalize_rewards": True,
}  # fmt: skip
ALONE = {"algorithm.normalize_observations": False, "algorithm.target_kl": None, "algorithm.lr_schedule": "constant"}


@pytest.mark.thorough
def test_shards_of_ppo_differ_by_their_observation_statistics_alone(inline: Any) -> None:
    """Rewards have one scale per member, which selection copies and whose discount mutation changes."""
    settings = {**GAMMAS, **ALONE}
    whole = trained("ppo", shards=1, **settings)
    assert len({agent._reward_statistics["gamma"] for agent in whole.population}) > 1
    assert any(birth.kind == "rl_hp" for birth in whole.lineage)
    assert digest(trained("ppo", shards=2, workers=2, **settings)) == digest(whole)
    assert digest(trained("ppo", shards=4, **settings)) == digest(whole)
    settings["algorithm.normalize_observations"] = True
    assert digest(trained("ppo", shards=2, **settings)) != digest(trained("ppo", shards=1, **settings))


@pytest.mark.thorough
@pytest.mark.parametrize("case", ["ppo", "dqn"])
def test_scales_of_changing_discounts_are_resumed_bit_for_bit(case: str, inline: Any, tmp_path: Path) -> None:
    whole = trained(case, shards=2, **GAMMAS)
    half = trained(case, shards=2, workers=2, out=tmp_path, callbacks=[lambda record: False], **GAMMAS)
    assert half.path is not None
    assert digest(resume_training(half.path, verbose=False)) == digest(whole)


@pytest.mark.thorough
def test_shards_with_a_replay_of_their_own_have_one_result(inline: Any, tmp_path: Path) -> None:
    alone = trained("dqn", shards=2, share="shard", out=tmp_path)
    assert digest(trained("dqn", shards=2, workers=2, share="shard")) == digest(alone)
    assert digest(trained("dqn", shards=2)) != digest(alone)
    assert sorted(path.name for path in (alone.path / "replay").iterdir()) == ["memory", "memory-1"]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dqn", "ppo"])
def test_four_shards_have_one_result_too(case: str, inline: Any) -> None:
    alone = digest(trained(case, shards=4))
    assert digest(trained(case, shards=4, workers=3)) == alone


@pytest.mark.parametrize("case", ["dqn", pytest.param("sac", marks=pytest.mark.slow)])
def test_evaluation_in_workers_changes_nothing_without_shards(case: str, inline: Any) -> None:
    assert digest(trained(case, shards=1, workers=3)) == digest(trained(case, shards=1))


@pytest.mark.thorough
def test_a_run_in_shards_is_resumed_with_any_number_of_workers(inline: Any, tmp_path: Path) -> None:
    whole = digest(trained("n-step, prioritised", shards=2))
    half = trained("n-step, prioritised", shards=2, workers=2, out=tmp_path, callbacks=[lambda record: False])
    assert len(half.history) == 1
    assert half.path is not None
    run = agilerl.resume(half.path, verbose=False, workers=3)
    assert len(run.history) == 3
    assert digest(run) == whole


def test_a_resume_with_another_number_of_shards_is_refused(tmp_path: Path) -> None:
    run = trained("dqn", shards=2, out=tmp_path)
    assert run.path is not None
    with pytest.raises(ConfigError, match=r"resume --set cannot change training\.shards"):
        resume_training(run.path, verbose=False, settings=["training.shards=1"], steps=1200)


class Failing(InlineWorkers):
    """Workers of which the jobs in `plan` go wrong: "lost", or "raised"; counted from the first job of the run."""

    plan: Sequence[str | None] = ()

    def __init__(self, make: Callable[[int], Serve], count: int) -> None:
        super().__init__(make, count)
        self._left = list(self.plan)

    def submit(self, worker: int, job: bytes) -> None:
        fate = self._left.pop(0) if self._left else None
        if fate is None:
            return super().submit(worker, job)
        if fate == "lost":
            self.kill(worker, "it was switched off")
        else:
            self._replies[worker] = [Reply(worker, "raised", error="OSError: no space")]
        return None


@pytest.mark.parametrize("fate", ["lost", "raised"])
def test_a_piece_that_fails_in_a_worker_is_done_again(fate: str, inline: Any) -> None:
    inline(type("Kind", (Failing,), {"plan": [None, fate, None, fate]}))
    assert digest(trained("dqn", shards=2, workers=2)) == digest(trained("dqn", shards=2))


class Late(InlineWorkers):
    """Workers whose first result comes late, after `HELD` looks while this process works; it may be wrong then."""

    is_wrong = False
    held: Reply | None = None
    looks = 0

    def idle(self) -> list[int]:
        return [] if self.held is not None else super().idle()

    def poll(self, seconds: float) -> list[Reply]:
        replies = super().poll(0.0)
        if self.looks == 0 and (done := [reply for reply in replies if reply.kind == "done"]):
            self.held = done[0]
            replies.remove(self.held)
        if self.held is None:
            return replies
        self.looks += seconds == 0.0  # otherwise it waits
        if self.looks < HELD:
            return replies
        reply, self.held = self.held, None
        result = pickle.loads(reply.payload)
        result["tallies"][0].updates += self.is_wrong
        return [*replies, replace(reply, payload=pickle.dumps(result), host="elsewhere")]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_late_piece_is_done_twice_and_the_results_are_compared(
    is_wrong: bool, inline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "MIN_STRAGGLER_SECONDS", 0.0)
    monkeypatch.setattr(scheduling, "POLL_SECONDS", 1e-9)
    inline(type("Kind", (Late,), {"is_wrong": is_wrong}))
    if is_wrong:
        with pytest.raises(RunError, match=r"one result on .* and another on elsewhere, with the same seeds"):
            trained("dqn", shards=2, workers=2)
    else:
        assert digest(trained("dqn", shards=2, workers=2)) == digest(trained("dqn", shards=2))


def test_three_lost_workers_end_the_run_with_the_shard_and_the_seed(inline: Any) -> None:
    class Elsewhere(Failing):
        plan = ["lost"] * 30

    inline(Elsewhere)
    with pytest.raises(RunError, match=r"shard 1 of generation 0 \(run seed 3\) has lost 3 workers.*switched off"):
        trained("dqn", shards=2, workers=2, seed=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"shards": 5}, r"training\.shards=5 needs a member .*fix: training\.pop_size=5, or"),
        ({"shards": 2, "workers": 0}, r"workers must be at least 1, or 'auto'; got 0"),
        ({"shards": 2, "workers": "two"}, r"workers must be at least 1.* got 'two'\. fix: workers='auto'"),
        (
            {"shards": 2, "carry_envs": True},
            r"carry_envs=true continues episodes in lanes .*fix: training\.shards=1",
        ),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        trained("dqn", **{"shards": 1, **arguments})


def test_agents_with_state_that_cannot_travel_are_refused() -> None:
    from agilerl.algorithms import DQN

    class Talking(DQN):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self.told = object()

    with pytest.raises(ConfigError, match=r"Talking\.told \(object\) would stay behind\. fix: plain data"):
        trained("dqn", shards=2, algo=Talking)


def test_states_of_agents_that_a_worker_lets_go_of_are_in_every_job() -> None:
    """A copy of the best agent plays its episodes in two blocks, both in one worker, which keeps trained members."""
    plan = GenerationPlan(3, 0, 1, 4, 10, "sequential")
    asked = Dispatcher(SimpleNamespace(evaluator=SimpleNamespace()), None)  # type: ignore[arg-type]
    asked._plan, copy, member = plan, SimpleNamespace(run_state=dict), SimpleNamespace(run_state=dict)
    asked._trained = [(member, "3:0")]
    agents, episodes = [(agent, asked._key(agent)) for agent in (copy, member)], Episodes.of(np.arange(4))
    jobs = [asked._episodes_job(episodes.part(first, first + 2), agents, 0) for first in (0, 2)]
    assert [list(job["states"]) for job in jobs] == [["once:0", "3:0"], ["once:0"]]
