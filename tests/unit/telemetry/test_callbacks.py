"""Hooks of a user's own: called in order, able to stop a run, named when they raise, and never costing a generation."""

from __future__ import annotations

import json
from typing import Any

import pytest

import agilerl
from agilerl.errors import CallbackError, ConfigError

SMALL = {"population": 2, "steps": 600, "seed": 0, "verbose": False, "evo_steps": 200, "eval_episodes": 1,
         "elite_rescore_episodes": 0, "evolve_from": 0.0, "target_score": None}  # fmt: skip


class Heard(agilerl.Callback):
    def __init__(self, stop_at: int | None = None) -> None:
        self.said: list[tuple[str, Any]] = []
        self.stop_at = stop_at

    def on_generation(self, record: Any) -> bool | None:
        self.said.append(("generation", record.generation))
        return False if record.generation == self.stop_at else None

    def on_birth(self, birth: Any) -> None:
        self.said.append(("birth", birth.id))

    def on_best(self, agent: Any) -> None:
        self.said.append(("best", agent.index))

    def on_end(self, result: Any) -> None:
        self.said.append(("end", result.stopped))


def test_every_hook_is_called_with_what_happened(tmp_path: Any) -> None:
    heard = Heard()
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[heard], **SMALL)
    assert [value for name, value in heard.said if name == "generation"] == [0, 1, 2]
    assert [value for name, value in heard.said if name == "birth"] == [birth.id for birth in run.lineage]
    assert any(name == "best" for name, _ in heard.said)
    assert heard.said[-1] == ("end", "budget")
    births_of_first = [birth.id for birth in run.lineage if birth.generation == 1]
    order = heard.said.index(("generation", 0))
    assert births_of_first
    assert all(heard.said.index(("birth", number)) < order for number in births_of_first)


def test_false_stops_the_run_and_resume_ends_as_if_it_had_never_stopped(tmp_path: Any) -> None:
    whole = agilerl.train("CartPole-v1", "DQN", out=tmp_path / "whole", **SMALL)
    run = agilerl.train("CartPole-v1", "DQN", out=tmp_path / "cut", callbacks=[Heard(stop_at=0)], **SMALL)
    assert run.result["stopped"] == "callback Heard.on_generation"
    assert run.result["generations"] == 1
    assert json.loads((run.path / "run.json").read_text())["result"]["stopped"] == "callback Heard.on_generation"
    resumed = agilerl.resume(run.path, verbose=False)
    assert resumed.result["stopped"] == "budget"
    assert resumed.history == whole.history


@pytest.mark.thorough
def test_a_hook_that_raises_is_named_and_the_run_goes_on_from_there(tmp_path: Any) -> None:
    def broken(record: Any) -> None:
        raise ZeroDivisionError("of mine")

    with pytest.raises(CallbackError, match=r"callback broken raised ZeroDivisionError: of mine\. fix: .*resume"):
        agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[broken], **SMALL)
    (path,) = (tmp_path / "CartPole-v1").iterdir()
    assert json.loads((path / "run.json").read_text())["status"] == "failed"
    whole = agilerl.train("CartPole-v1", "DQN", out=tmp_path / "whole", **SMALL)
    assert agilerl.resume(path, verbose=False).history == whole.history


def test_something_without_a_hook_is_refused_with_the_nearest_name(tmp_path: Any) -> None:
    class Misspelt:
        def on_generatoin(self, record: Any) -> None: ...

    with pytest.raises(ConfigError, match=r"callback Misspelt has none of the hooks .* fix: a method on_generation"):
        agilerl.train("CartPole-v1", "DQN", out=tmp_path, callbacks=[Misspelt()], **SMALL)


def test_published_functions_take_them() -> None:
    from agilerl.components.replay_buffer import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.training.train_on_policy import train_on_policy
    from agilerl.utils.utils import create_population, make_vect_envs

    env = make_vect_envs("CartPole-v1", num_envs=2)
    spaces = {"observation_space": env.single_observation_space, "action_space": env.single_action_space}
    for algo, train, more in (
        ("DQN", train_off_policy, {"memory": ReplayBuffer(1000)}),
        ("PPO", train_on_policy, {}),
    ):
        heard = Heard(stop_at=0)
        pop = create_population(algo, population_size=2, num_envs=2, seed=0, **spaces)
        _, fitnesses = train(
            env, "CartPole-v1", pop=pop, max_steps=10_000, evo_steps=100, eval_steps=10, seed=0, verbose=False,
            callbacks=[heard], **more,
        )  # fmt: skip
        assert len(fitnesses) == 1
        assert heard.said[-1] == ("end", "callback Heard.on_generation")
    env.close()
