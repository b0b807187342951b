"""Teams with a `learn` of their own in the published loop, and what `learn` is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from sinks import Kept
from team_games import Meeting

from agilerl.algorithms import MADDPG
from agilerl.algorithms.teams.transitions import TeamExperiences
from agilerl.components.data import MultiAgentTransition
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.core.checkpoint import digest_tree
from agilerl.envs.protocol import AGENTS, PRESENT, TeamObservations
from agilerl.errors import ConfigError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.vector import SyncPettingZooVecEnv

IDS = Meeting.possible_agents
NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 4}
NAMES = ["obs", "action", "reward", "next_obs", "done"]
GIVEN: list[tuple[int, Any]] = []  # (index of a team, what its `learn` got)


@pytest.fixture(autouse=True)
def nothing_was_given() -> None:
    GIVEN.clear()


class Patient(MADDPG):
    """Learns by a `learn` of its own, and keeps what it was given."""

    def learn(self, experiences: Any) -> Any:
        GIVEN.append((self.index, experiences))
        return self.learn_from(experiences)


class Ranked(Patient):
    """Sets priorities by itself."""

    def learn(self, experiences: Any, per: bool = False) -> Any:
        loss = super().learn(experiences)
        indices = experiences.more["idxs"]
        return loss, indices, 1.0 + np.arange(len(indices)) if per else None


class Late(Meeting):
    """Counts its choices from 5."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3, start=5) if agent.startswith("caller") else spaces.Box(-2, 2, (1,))

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        assert all(5 <= int(a) < 8 for agent, a in actions.items() if agent.startswith("caller"))
        return super().step({a: own - 5 if a.startswith("caller") else own for a, own in actions.items()})


def teams(cls: Any = Patient, size: int = 2, game: Any = Late) -> list[Any]:
    env = game()
    both = [{a: make(a) for a in IDS} for make in (env.observation_space, env.action_space)]
    return [cls(*both, index=i, batch_size=8, net_config=NET, seed=i, gamma=0.9) for i in range(size)]


def train(pop: Any, memory: Any, **more: Any) -> tuple[Any, Any]:
    given = {"max_steps": 48, "evo_steps": 24, "learning_delay": 12, "verbose": False, "seed": 5, **more}
    return train_multi_agent_off_policy(SyncPettingZooVecEnv([Late, Late]), "Late", None, pop, memory, **given)


def test_the_loop_calls_the_learn_of_a_team_with_what_its_agents_saw_and_did() -> None:
    rows = Kept()
    pop, fitnesses = train(teams(), ReplayBuffer(200), sinks=[rows], sum_scores=False)
    assert np.shape(fitnesses) == (2, 2, 3)
    assert len(pop) == 2
    assert [[i for i, _ in GIVEN].count(k) for k in (0, 1)] == [
        sum(r.members[k].updates for r in rows.records) for k in (0, 1)
    ]
    assert len(GIVEN) > 6
    assert all(member.loss is not None and member.loss > 0 for record in rows.records for member in record.members)
    assert rows.records[0].members[0].agent_scores["caller_0"] == 6.0
    states, actions, rewards, following, dones = GIVEN[-1][1]
    assert set(np.unique(actions["caller_0"].numpy())) <= {5, 6, 7}
    assert actions["mover_0"].abs().max() <= 1
    there = states.present["caller_1"].astype(bool)
    assert 0 < there.sum() < len(there)
    assert rewards["caller_1"].ravel().isnan().tolist() == (~there).tolist()
    assert set(rewards["caller_0"].ravel().tolist()) == {1.0}
    assert following.keys() == dones.keys() == set(IDS)


@pytest.mark.parametrize("n_step", [1, 3])
def test_what_learn_is_given_is_the_batch_that_the_engine_learns_from(n_step: int) -> None:
    memory = ReplayBuffer(200) if n_step == 1 else MultiStepReplayBuffer(200, n_step=3, gamma=0.9)
    (team,), _ = train(teams(size=1), memory)
    given = GIVEN[-1][1]
    assert isinstance(given, TeamExperiences)
    batch, rows = team.make_batch(given), memory.gather(given.more["idxs"])
    there = rows["obs"][PRESENT].bool()
    assert torch.equal(batch.obs[PRESENT], rows["obs"][PRESENT])
    assert torch.equal(batch.next_obs[PRESENT], rows["next_obs"][PRESENT])
    for agent in IDS:
        assert torch.equal(batch.next_obs[AGENTS][agent], rows["next_obs"][AGENTS][agent])
    torch.testing.assert_close(batch.action, rows["action"])
    torch.testing.assert_close(batch.reward, rows["reward"] * there)
    torch.testing.assert_close(batch.done[there], rows["done"].float()[there])
    for name in ("obs_mask", "next_mask"):
        assert torch.equal(getattr(batch, name), rows[name].bool())
    if n_step == 1:
        assert batch.discount is None
    else:
        torch.testing.assert_close(batch.discount, rows["discount"])
    assert not rows["next_obs"][PRESENT].all()


@pytest.mark.thorough
def test_a_team_of_ones_own_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, history = train(teams(), ReplayBuffer(200), resume=tmp_path / "whole")
    stop = {"callbacks": [lambda record: False]}
    train(teams(), ReplayBuffer(200), resume=tmp_path / "parts", **stop)
    resumed, second = train(teams(), ReplayBuffer(200), resume=tmp_path / "parts")
    assert second == history
    assert [digest_tree(a.policy_state()) for a in resumed] == [digest_tree(a.policy_state()) for a in whole]


def test_a_team_sets_priorities_of_its_own_where_it_takes_them() -> None:
    memory = PrioritizedReplayBuffer(200, alpha=1.0)
    train(teams(Ranked, 1), memory)
    assert GIVEN[-1][1].more["weights"].shape == (8,)
    assert len(np.unique(memory.weights(np.arange(len(memory)), 1.0))) > 3
    with pytest.raises(ConfigError, match=r"Patient.learn takes no argument 'per'.* fix: "):
        train(teams(size=1), PrioritizedReplayBuffer(200))


def test_a_memory_without_rows_of_teams_is_named() -> None:
    class Own:
        def __len__(self) -> int:
            return 0

        def sample(self, size: int) -> Any:
            raise NotImplementedError

        def save_to_memory(self, *rows: Any, is_vectorised: bool = False) -> None:
            raise NotImplementedError

    with pytest.raises(ConfigError, match=r"is a Own without write, .* fix: MultiAgentReplayBuffer"):
        train(teams(size=1), Own())


# -- who is there ------------------------------------------------------------------------------------------------------


def test_observations_say_who_is_there_by_name_and_by_the_word_of_a_vector() -> None:
    (team,) = teams(MADDPG, 1)
    rows = {a: np.ones((2, *team.possible_observation_spaces[a].shape), np.float32) for a in IDS}
    there = {"caller_0": [True, False], "caller_1": [False, False], "mover_0": [True, True]}
    from agilerl.algorithms.teams.evaluation import observed

    told, _ = observed(team, TeamObservations(rows, {a: np.array(own) for a, own in there.items()}))
    assert told[PRESENT].tolist() == [[1, 0, 1], [0, 0, 1]]
    by_name, _ = observed(team, {a: rows[a] for a in ("caller_1", "mover_0")})
    assert by_name[PRESENT].tolist() == [[0, 1, 1]] * 2
    env = SyncPettingZooVecEnv([Late, Late])
    obs, infos = env.reset(seed=1)
    seen, _ = observed(team, obs)
    assert seen[PRESENT].tolist() == [[1, 0, 1]] * 2, "caller_1 comes later"
    actions, _ = team.get_action(obs, infos)
    assert set(actions) == set(IDS)


@pytest.mark.parametrize("names", [NAMES, None])
def test_who_is_absent_after_a_step_is_absent_for_what_is_learned(names: list[str] | None) -> None:
    """Over a vector and the published memory, in both dialects: the next actions of who is gone are not counted."""
    (team,) = teams(MADDPG, 1)
    memory, env = MultiAgentReplayBuffer(60, names, IDS), SyncPettingZooVecEnv([Late, Late])
    obs, infos = env.reset(seed=1)
    for _ in range(12):
        action, raw = team.get_action(obs, infos)
        following, reward, termination, _, infos = env.step(action)
        if names is None:
            memory.add(MultiAgentTransition(obs, raw, reward, following, termination, batch_size=[2]))
        else:
            memory.save_to_memory(obs, raw, reward, following, termination, is_vectorised=True)
        obs = following
    rows = memory.gather(np.arange(24))
    batch = team.make_batch(memory.sample_from_indices(np.arange(24)))
    assert torch.equal(batch.obs[PRESENT], rows["obs"][PRESENT])
    assert torch.equal(batch.next_obs[PRESENT], rows["next_obs"][PRESENT])
    assert 0 < batch.next_obs[PRESENT][:, 1].sum() < 24
    assert set(team.learn(memory.sample(8))) == {"caller", "mover"}
