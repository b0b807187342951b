"""`carry_envs=True`: episodes go on over the end of a generation, and what that costs is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from faulty_runs import CASES, digest, resume, train, train_part
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import DQN, PPO
from agilerl.cli import app
from agilerl.collect.collector import CARRIED_NOTE, Running, lanes_of
from agilerl.collect.off_policy import OffPolicyCollector
from agilerl.collect.rollouts import OnPolicyCollector
from agilerl.components.replay_buffer import MultiStepReplayBuffer, ReplayBuffer
from agilerl.components.rollout_store import RolloutStore as RolloutBuffer
from agilerl.core.options import LoopOptions, OffPolicyOptions
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.envs.vector import make_vect_envs
from agilerl.errors import AgileRLWarning, ConfigError
from agilerl.hpo.evolution import TournamentEvolution
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.off_policy import EpisodeTracker
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.loop import LoopSettings, TrainingLoop
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy

NETWORK = {"latent_dim": 8, "encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}}
LENGTH = 50  # vector steps of an episode; a generation has 20


class Clock(gym.Env[np.ndarray, np.int64]):
    """Shows the time since the episode began; reward 1 a step, for 50 steps."""

    observation_space = gym.spaces.Box(0, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, resets: list[int]) -> None:
        self.resets = resets

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.resets.append(1)
        self.time = 0
        return self.see(), {}

    def step(self, action: np.int64) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.see(), 1.0, self.time == LENGTH, False, {}

    def see(self) -> np.ndarray:
        return np.array([self.time / LENGTH, 1.0], np.float32)


def clocks(resets: list[int], num_envs: int = 2) -> Any:
    return make_vect_envs(make_env=lambda: Clock(resets), num_envs=num_envs)


def off_policy_loop(carry: bool, evolve: bool) -> tuple[TrainingLoop, MultiStepReplayBuffer, list[int]]:
    """Two members on two lanes each, six generations of 20 vector steps."""
    resets: list[int] = []
    memory = MultiStepReplayBuffer(1000, n_step=3, gamma=0.5)
    agents = [
        DQN(Clock.observation_space, Clock.action_space, index=i, seed=i, net_config=NETWORK, batch_size=8)
        for i in range(2)
    ]
    options = OffPolicyOptions(max_steps=240, evo_steps=40, eval_episodes=2, carry_envs=carry)
    parts: dict[str, Any] = {}
    if evolve:
        mutation = Mutations(0.2, 0.5, 0.2, 0.3, 0, 0, rand_seed=1)
        parts["evolution"] = TournamentEvolution(TournamentSelection(2, True, 2, seed=1), mutation)
    source = OffPolicyCollector(clocks(resets), memory, options, eval_env=clocks([]))
    return TrainingLoop(agents, source, options, LoopSettings(seed=5, **parts)), memory, resets


@pytest.mark.parametrize("evolve", [False, True])
def test_carried_episodes_are_played_to_their_ends_and_windows_go_over_the_boundary(evolve: bool) -> None:
    """120 vector steps a lane are 2.4 episodes. With γ = 1/2 a window of three steps is worth 1 + 1/2 + 1/4 = 1.75, the
    last two of an episode 1.5 and 1; the two windows that are open at the end are no rows yet."""
    loop, memory, resets = off_policy_loop(carry=True, evolve=evolve)
    loop.run()
    assert len(resets) == 4 * 3, "every lane begins three episodes, whoever acts in it"
    if not evolve:
        assert [agent.scores for agent in loop.population] == [[50.0] * 4] * 2
    rows = memory.gather(np.arange(len(memory)))
    assert len(memory) == 4 * (120 - 2)
    assert float(rows["reward"].sum()) == 4 * (2 * (48 * 1.75 + 1.5 + 1.0) + 18 * 1.75)
    first, last = rows["obs"][:, 0] * LENGTH, rows["next_obs"][:, 0] * LENGTH
    torch.testing.assert_close(last - first, torch.where(first < 47.5, 3.0, LENGTH - first))
    if evolve:
        assert any(birth.kind != "founder" for birth in loop.result.births), "somebody was replaced"


def test_without_it_every_generation_cuts_its_episodes_off_as_before() -> None:
    loop, memory, resets = off_policy_loop(carry=False, evolve=False)
    loop.run()
    assert len(resets) == 4 * 6
    assert [agent.scores for agent in loop.population] == [[], []]
    rows = memory.gather(np.arange(len(memory)))
    assert float(rows["reward"].sum()) == 4 * 6 * (18 * 1.75 + 1.5 + 1.0)
    assert not rows["done"].any()


def test_a_run_that_carries_is_the_same_run_twice(tmp_path: Path) -> None:
    case = {**CASES["DQN-per-n-step"], "carry_envs": True}
    assert digest(train(case, tmp_path / "one")) == digest(train(case, tmp_path / "two"))
    assert digest(train(CASES["DQN-per-n-step"], tmp_path / "cut")) != digest(next(tmp_path.glob("one/*/*")))


class Rollouts:
    """What is stored in rollouts: (position, first observation of the first lane, hidden states before the step)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[np.ndarray] = []
        self.obs: list[np.ndarray] = []
        self.hidden: list[dict[str, np.ndarray]] = []
        add = RolloutBuffer.add

        def noted(buffer: RolloutBuffer, obs: Any, *args: Any, **kwargs: Any) -> None:
            self.times.append(np.rint(obs[:, 0] * LENGTH).astype(int))
            self.obs.append(obs.copy())
            self.hidden.append({key: part.copy() for key, part in (kwargs["hidden"] or {}).items()})
            add(buffer, obs, *args, **kwargs)

        monkeypatch.setattr(RolloutBuffer, "add", noted)


def on_policy_loop(carry: bool, recurrent: bool) -> TrainingLoop:
    """One member on two lanes, three generations of one rollout of 20 vector steps; it learns next to nothing."""
    config = {**NETWORK, "encoder_config": {"hidden_state_size": 8, "min_hidden_state_size": 8}}
    options: dict[str, Any] = {"recurrent": True, "use_rollout_buffer": True} if recurrent else {}
    agent = PPO(
        Clock.observation_space, Clock.action_space, net_config=config if recurrent else NETWORK, learn_step=40,
        batch_size=20, update_epochs=1, lr=1e-12, num_envs=2, **options,
    )  # fmt: skip
    asked = LoopOptions(max_steps=120, evo_steps=40, eval_episodes=2, carry_envs=carry)
    return TrainingLoop([agent], OnPolicyCollector(clocks([]), asked), asked, LoopSettings(seed=4))


def test_rollouts_go_on_where_the_last_generation_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Rollouts(monkeypatch)
    loop = on_policy_loop(carry=True, recurrent=False)
    loop.run()
    assert [times.tolist() for times in seen.times] == [[t % LENGTH] * 2 for t in range(60)]
    assert loop.population[0].scores == [50.0, 50.0]


@pytest.mark.parametrize("carry", [True, False])
def test_hidden_states_go_on_with_the_episodes_of_the_same_member(carry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a learning rate of 1e-12 the weights stay, so what the network makes of the step before is known."""
    seen = Rollouts(monkeypatch)
    loop = on_policy_loop(carry, recurrent=True)
    loop.run()
    (agent,) = loop.population
    learner = Learner([agent], choose([agent], "sequential"))
    for boundary in (20, 40):
        before = {
            key: torch.from_numpy(part)[:, None].transpose(0, 1) for key, part in seen.hidden[boundary - 1].items()
        }
        _, _, after = learner.recur(0, seen.obs[boundary - 1][None], before)
        for key, part in after.items():
            expected = part[0].numpy(force=True) if carry else np.zeros_like(seen.hidden[boundary][key])
            np.testing.assert_allclose(seen.hidden[boundary][key], expected, atol=1e-6)
            assert carry == bool(np.abs(expected).max() > 1e-3)
    learner.release()


def test_hidden_states_belong_to_a_member_its_lanes_and_its_network() -> None:
    states = {"h": torch.ones(1, 2, 8)}
    running = Running(None, {}, EpisodeTracker(2), False, {7: (1, states)})
    assert running.hidden_of(7, 1, {"h": torch.zeros(1, 2, 8)}) is states
    assert running.hidden_of(7, 0, {"h": torch.zeros(1, 2, 8)}) is None, "those lanes were another member's"
    assert running.hidden_of(7, 1, {"h": torch.zeros(1, 2, 9)}) is None, "its network has changed"
    assert running.hidden_of(8, 1, {"h": torch.zeros(1, 2, 8)}) is None, "it is new"
    assert lanes_of([0, 2], 3).tolist() == [0, 1, 2, 6, 7, 8]


@pytest.mark.parametrize("name", ["DQN-per-n-step", pytest.param("PPO-recurrent", marks=pytest.mark.slow)])
def test_a_resumed_run_begins_new_episodes_and_says_that_it_is_not_exact(name: str, tmp_path: Path) -> None:
    path = train_part({**CASES[name], "carry_envs": True}, tmp_path, 3)
    facts = json.loads((path / "run.json").read_text())
    assert CARRIED_NOTE in facts["notes"]
    assert facts["options"]["carry_envs"] is True
    assert facts["exact_resume"] is False
    assert resume(path) == [], "it was said when the run began, and its settings are the same"
    facts = json.loads((path / "run.json").read_text())
    assert "continues after 3 generations, with new episodes" in facts["notes"]
    assert (facts["status"], facts["result"]["env_steps_member"]) == ("done", 960)


def test_resume_can_switch_it_and_says_so(tmp_path: Path) -> None:
    path = train_part(CASES["DQN"], tmp_path, 3)
    assert json.loads((path / "run.json").read_text())["exact_resume"] is True
    (note,) = resume(path, carry_envs=True)
    assert "other settings (carry_envs False -> True); it will not equal one that never stopped" in note
    assert json.loads((path / "run.json").read_text())["options"]["carry_envs"] is True
    assert resume(path) == [], "the record has it now"
    done = CliRunner().invoke(app, ["resume", str(path), "--cut-envs", "--quiet", "--test-episodes", "0"])
    assert done.exit_code == 0, done.output
    assert json.loads((path / "run.json").read_text())["options"]["carry_envs"] is False


# -- where it cannot be ------------------------------------------------------------------------------------------------


class Own(DQN):
    def learn(self, experiences: Any, *args: Any, **kwargs: Any) -> Any:
        return super().learn_from(experiences)


def refused(env: Any, kind: type[DQN] = DQN, **options: Any) -> str:
    agents = [kind(Clock.observation_space, Clock.action_space, index=i, net_config=NETWORK) for i in range(2)]
    with pytest.raises(ConfigError) as caught:
        train_off_policy(env, "Clock", pop=agents, memory=ReplayBuffer(100), verbose=False, carry_envs=True, **options)
    assert "fix:" in str(caught.value)
    return str(caught.value)


def test_shared_lanes_are_a_named_error_with_the_fix() -> None:
    assert "no other member uses" in refused(clocks([]), lockstep=False)
    assert "only environments of make_vect_envs can be replicated" in refused(
        gym.vector.SyncVectorEnv([lambda: Clock([])] * 2)
    )
    assert "brings its own learn()" in refused(clocks([]), Own)
    agents = [PPO(Clock.observation_space, Clock.action_space, net_config=NETWORK, num_envs=2)]
    with pytest.raises(ConfigError, match=r"collect_rollouts_fn collects.*fix:"):
        train_on_policy(
            clocks([]), "Clock", pop=agents, verbose=False, collect_rollouts_fn=collect_rollouts, carry_envs=True
        )


def test_carried_episodes_are_equal_with_a_process_for_each_environment() -> None:
    trained = []
    for should_async_vector in (False, True):
        env = make_vect_envs("CartPole-v1", num_envs=2, should_async_vector=should_async_vector, seed=1)
        agents = [DQN(env.single_observation_space, env.single_action_space, net_config=NETWORK, seed=1, batch_size=8)]
        train_off_policy(
            env, "CartPole", pop=agents, memory=ReplayBuffer(100), max_steps=120, evo_steps=40, eval_steps=20,
            eval_loop=1, verbose=False, carry_envs=True,
        )  # fmt: skip
        env.close()
        trained.append(agents[0].actor.state_dict())
    assert all(torch.equal(value, trained[1][name]) for name, value in trained[0].items())


def test_a_run_without_the_option_says_nothing_of_it(tmp_path: Path) -> None:
    facts = json.loads((train(CASES["DQN"], tmp_path) / "run.json").read_text())
    assert not any("carry_envs" in note for note in facts["notes"])
    with pytest.warns(AgileRLWarning, match="carry_envs False -> True"):
        agilerl.resume(next(tmp_path.glob("*/*")), verbose=False, carry_envs=True)
