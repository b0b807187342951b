"""Agents that act at different frequencies: what happens while one waits is what its last action was worth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.matd3 import MATD3
from agilerl.algorithms.teams.evaluation import observed
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.envs.teams import TeamLanes
from agilerl.errors import AlgorithmError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv
from agilerl.wrappers.agent import AsyncAgentsWrapper

NET: dict[str, Any] = {
    "encoder_config": {"hidden_size": [32]}, "head_config": {"hidden_size": [32]}, "latent_dim": 16,
}  # fmt: skip
GAMMA = 0.5
# What `slow` gets for its actions in the step that it acts in, and in the two that it waits for: 0.3, or 0, 1 and 2.
# In units of its decision 0.3 and γ + 2γ² = 1, so that the second one is better, though it gives nothing at once.
PAID = np.array([[0.3, 0.0, 0.0], [0.0, 1.0, 2.0]])
Q_LAST = PAID @ GAMMA ** np.arange(3)
Q_FIRST = Q_LAST + GAMMA**3 * Q_LAST.max()


class Shifts:
    """Six steps. `fast` acts in each and gets 1; it sees the time. `slow` acts in the first and in the fourth one and
    is not there in between; it sees which of them it is."""

    possible_agents = ("fast", "slow")
    metadata: dict[str, Any] = {"name": "shifts_v0"}  # noqa: RUF012

    def __init__(self) -> None:
        self.agents, self.time, self.chosen = list[str](), 0, 0

    def observation_space(self, agent: str) -> Any:
        return spaces.Box(0, 1, (6 if agent == "fast" else 2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(2)

    def show(self, time: int) -> dict[str, np.ndarray]:
        seen = {"fast": np.eye(7, 6, dtype=np.float32)[time]}
        return seen | ({"slow": np.eye(2, dtype=np.float32)[time // 3]} if time in (0, 3) else {})

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        self.agents, self.time = list(self.possible_agents), 0
        return self.show(0), {a: {} for a in self.agents}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.chosen = int(actions.get("slow", self.chosen))
        rewards = {"fast": 1.0, "slow": float(PAID[self.chosen, self.time % 3])}
        self.time += 1
        over, agents = self.time == 6, self.possible_agents
        self.agents = [] if over else self.agents
        return self.show(self.time), rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, False), {}

    def close(self) -> None:
        """Nothing to release."""


def spaces_of() -> tuple[Any, Any]:
    env = Shifts()
    return {a: env.observation_space(a) for a in env.possible_agents}, {
        a: spaces.Discrete(2) for a in env.possible_agents
    }


def fast_value(time: int) -> float:
    """Of one unit in each of the steps that are left."""
    return float((1 - GAMMA ** (6 - time)) / (1 - GAMMA))


@pytest.mark.parametrize("cls", [MADDPG, pytest.param(MATD3, marks=pytest.mark.slow)])
def test_critics_know_what_waiting_brings(cls: Any) -> None:
    pop = cls.population(1, *spaces_of(), seed=1, net_config=NET, lr_actor=1e-3, lr_critic=1e-2, batch_size=64,
                         learn_step=4, gamma=GAMMA, tau=0.1)  # fmt: skip
    memory = MultiAgentReplayBuffer(2000, agent_ids=list(Shifts.possible_agents))
    env = SyncPettingZooVecEnv([Shifts] * 4)
    (team,), _ = train_multi_agent_off_policy(
        env, "shifts", pop=pop, memory=memory, max_steps=1600, evo_steps=1600, eval_steps=6, seed=2, verbose=False,
        learning_delay=100,
    )  # fmt: skip
    assert set(np.unique(memory.gather(np.arange(600))["obs"]["waiting"].numpy())) == {0, 1}
    shifts, names = Shifts(), [name for name in team.evaluation_networks() if name.startswith("critic")]
    for name in names:
        for time, known in ((0, Q_FIRST), (3, Q_LAST)):
            seen, _ = observed(team, shifts.show(time))
            rows = {a: torch.as_tensor(np.repeat(np.asarray(x), 2, 0)) for a, x in seen["agents"].items()}
            for other in range(2):
                action = torch.tensor([[other, 0.0], [other, 1.0]])
                with torch.no_grad():
                    found = getattr(team, name)(rows, team.actions.features(action)).squeeze(-1).numpy()
                expected = known if name.endswith("slow") else np.full(2, fast_value(time))
                np.testing.assert_allclose(found, expected, atol=0.05, err_msg=f"{name} at {time}")
    for time in (0, 3):
        assert team.get_action(shifts.show(time), training=False)[0]["slow"].tolist() == [1]


@pytest.mark.parametrize("cls", [IPPO, pytest.param(MAPPO, marks=pytest.mark.slow)])
def test_values_and_policies_know_what_waiting_brings(cls: Any) -> None:
    pop = cls.population(1, *spaces_of(), seed=1, net_config=NET, lr=1e-2, batch_size=64, learn_step=192, gamma=GAMMA,
                         ent_coef=0.0, update_epochs=6)  # fmt: skip
    env = SyncPettingZooVecEnv([Shifts] * 8)
    (team,), _ = train_multi_agent_on_policy(
        env, "shifts", pop=pop, max_steps=3072, evo_steps=3072, eval_steps=6, seed=2, verbose=False
    )
    for time, known in ((0, Q_FIRST), (3, Q_LAST)):
        action, _, _, value = team.get_action(Shifts().show(time), training=False)
        assert action["slow"].tolist() == [1]
        assert value["slow"][0] == pytest.approx(known.max(), abs=0.1)
        assert value["fast"][0] == pytest.approx(fast_value(time), abs=0.15)


# --- the published wrapper --------------------------------------------------------------------------------------------


def bits(team: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for n in team.evaluation_networks().values() for p in n.parameters()])


@pytest.mark.parametrize("cls", [pytest.param(IPPO, marks=pytest.mark.slow), MADDPG])
def test_a_wrapped_team_is_trained_as_the_team_in_it_and_given_back_wrapped(cls: Any) -> None:
    found = []
    for wrapper in (None, AsyncAgentsWrapper):
        pop = cls.population(2, *spaces_of(), wrapper_cls=wrapper, seed=1, net_config=NET, learn_step=16, batch_size=16)
        env = SyncPettingZooVecEnv([Shifts] * 2)
        evolution = {
            "tournament": TournamentSelection(2, True, 2, 1, seed=4),
            "mutation": Mutations(0, 1, 0, 0, 0, 0, rand_seed=1),
        }
        more: dict[str, Any] = {"max_steps": 64, "evo_steps": 32, "eval_steps": 6, "seed": 2, "verbose": False}
        if cls is MADDPG:
            more["memory"] = MultiAgentReplayBuffer(200, agent_ids=list(Shifts.possible_agents))
        train: Any = train_multi_agent_off_policy if cls is MADDPG else train_multi_agent_on_policy
        pop, fitness = train(env, "shifts", pop=pop, **more, **evolution)
        assert all(isinstance(team, wrapper or cls) for team in pop)
        found.append((torch.cat([bits(team) for team in pop]), fitness))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]


@pytest.mark.parametrize("cls", [MAPPO, MADDPG])
def test_who_is_left_out_or_shows_nan_is_not_there(cls: Any, tmp_path: Any) -> None:
    team = cls(*spaces_of(), seed=1, net_config=NET)
    wrapped = AsyncAgentsWrapper(team)
    seen = {"fast": np.eye(6, dtype=np.float32)[:3], "slow": np.eye(2, dtype=np.float32)[[0, 1, 0]]}
    waits = {**seen, "slow": seen["slow"].copy()}
    waits["slow"][1] = np.nan
    found, whole = (wrapped.get_action(obs, training=False) for obs in (waits, seen))
    alone = wrapped.get_action({"fast": seen["fast"]}, training=False)
    assert list(alone[0]) == ["fast"]
    for agent in found[0]:
        rows = [0, 1, 2] if agent == "fast" else [0, 2]
        np.testing.assert_array_equal(found[0][agent][rows], whole[0][agent][rows])
    if cls is MAPPO:  # its value of the lane in which slow is not there is that of slow left out
        np.testing.assert_allclose(found[3]["fast"][[0, 2]], whole[3]["fast"][[0, 2]], rtol=1e-6)
        np.testing.assert_allclose(found[3]["fast"][1], alone[3]["fast"][1], rtol=1e-6)
    wrapped.save_checkpoint(tmp_path / "team.pt")
    assert isinstance(AsyncAgentsWrapper.load(tmp_path / "team.pt"), AsyncAgentsWrapper)
    with pytest.raises(AlgorithmError, match="AsyncAgentsWrapper is for teams; got DQN"):
        AsyncAgentsWrapper(DQN(spaces.Box(-1, 1, (2,)), spaces.Discrete(2)))


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_a_loop_of_ones_own_gives_what_happened_while_an_agent_waited(cls: Any) -> None:
    team = cls(*spaces_of(), seed=1, net_config=NET, gamma=GAMMA, num_envs=2)
    wrapped, twin, lanes = AsyncAgentsWrapper(team), team.clone(), TeamLanes([Shifts] * 2)
    names = ("observations", "actions", "log_probs", "rewards", "dones", "values")
    kept: dict[str, Any] = {name: {a: [] for a in Shifts.possible_agents} for name in names}
    buffer, done = twin.make_buffer(7, 2), np.zeros((2, 2))
    obs, _ = lanes.reset(np.arange(2))
    for _ in range(7):
        there = obs["present"].astype(bool).all(0)
        shown = {a: x for (a, x), is_there in zip(sorted(obs["agents"].items()), there, strict=True) if is_there}
        action, log_prob, _, value = wrapped.get_action(shown)
        filled = {a: action.get(a, np.zeros(2, np.int64)) for a in Shifts.possible_agents}
        batch = lanes.step(lanes.team.join(filled))
        assert batch.team is not None
        for k, a in enumerate(Shifts.possible_agents):
            row = (shown.get(a), action.get(a), log_prob.get(a), batch.team.reward[:, k], done[:, k], value.get(a))
            for name, x in zip(names, row, strict=True):
                kept[name][a].append(x)
        mean, deviation = twin.value_scale()
        stacked = [np.stack([x.get(a, np.zeros(2)) for a in Shifts.possible_agents], 1) for x in (log_prob, value)]
        buffer.add(
            obs, np.stack([filled[a] for a in Shifts.possible_agents], 1), batch.team.reward, batch.team.terminated,
            batch.team.truncated, stacked[0], (stacked[1] - mean) / deviation, final_obs=batch.final_obs,
            valid=batch.team.acted,
        )  # fmt: skip
        obs, done = batch.obs, batch.team.terminated.astype(float)
    buffer.last_obs = obs
    before = bits(team)
    last = {a: obs["agents"][a] for k, a in enumerate(Shifts.possible_agents) if obs["present"][:, k].all()}
    wrapped.learn((*kept.values(), last, {a: done[:, k] for k, a in enumerate(Shifts.possible_agents)}))
    twin.learn_buffer(buffer)
    assert not torch.equal(before, bits(team))
    torch.testing.assert_close(bits(team), bits(twin), rtol=1e-6, atol=1e-7)
