"""IPPO and MAPPO as agents and in the loop: probes with known values, the published face, mistakes, resumed runs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_envs import ParallelGame

from agilerl.algorithms.dqn import DQN
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.ppo import PPO
from agilerl.collect.collector import Shard, Shared
from agilerl.collect.teams.rollouts import TeamGeneration, TeamRolloutCollector
from agilerl.core.options import LoopOptions
from agilerl.envs.protocol import AGENTS, PRESENT
from agilerl.envs.teams import TeamLanes
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.utils.utils import make_multi_agent_vect_envs
from agilerl.vector import SyncPettingZooVecEnv

NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [16]}, "latent_dim": 16}
GAMMA = 0.5
# A value at the limit of its clip is on either side of it by rounding.
NORMALISED = {"normalize_observations": True, "clip_value_loss": False}
OBS = {name: spaces.Box(-1, 1, (2,), np.float32) for name in ("a_0", "a_1", "solo")}
ACTIONS: dict[str, Any] = {
    "a_0": spaces.Discrete(2, start=3), "a_1": spaces.Discrete(2, start=3), "solo": spaces.Box(-1, 1, (1,), np.float32),
}  # fmt: skip


class Signs(ParallelGame):
    """Two steps. Everyone sees a sign of its own and the time. In the second step `a_k` gets k + 1 for choosing the
    upper action where its sign is positive, else the lower one; `solo` gets the sign of a_0, less (action − ½)²."""

    observed, acted, length = OBS, ACTIONS, 2

    def observe(self) -> dict[str, np.ndarray]:
        if self.age == 0:
            self.sign = {a: float(self.rng.choice([-1, 1])) for a in OBS}
        return {a: np.array([self.sign[a], self.age], np.float32) for a in OBS}

    def rewards(self, actions: dict[str, Any]) -> dict[str, float]:
        rewards = dict.fromkeys(OBS, 0.0)
        if self.age == 2:
            for k in range(2):
                is_right = (actions[f"a_{k}"] == 4) == (self.sign[f"a_{k}"] > 0)
                rewards[f"a_{k}"] = float(is_right) * (k + 1)
            rewards["solo"] = self.sign["a_0"] - float((actions["solo"][0] - 0.5) ** 2)
        return rewards


def environment(count: int = 8) -> SyncPettingZooVecEnv:
    return SyncPettingZooVecEnv([Signs] * count)


def population(cls: Any, size: int = 2, **more: Any) -> list[Any]:
    arguments = {"net_config": NET, "lr": 1e-2, "batch_size": 32, "learn_step": 128, "gamma": GAMMA} | more
    made: list[Any] = cls.population(size, OBS, ACTIONS, seed=1, **arguments)
    return made


def train(pop: list[Any], env: Any = None, **more: Any) -> tuple[list[Any], Any]:
    arguments = {"max_steps": 512, "evo_steps": 256, "seed": 3, "verbose": False} | more
    return train_multi_agent_on_policy(environment() if env is None else env, "signs", pop=pop, **arguments)


def bits(agents: list[Any]) -> torch.Tensor:
    return torch.cat(
        [p.detach().flatten() for a in agents for n in a.evaluation_networks().values() for p in n.parameters()]
    )


# --- probes -----------------------------------------------------------------------------------------------------------


# --- in the loop ------------------------------------------------------------------------------------------------------


def test_members_that_normalise_learn_over_rows_what_they_learn_one_by_one() -> None:
    one, _ = train(population(MAPPO, **NORMALISED), learner="fused")
    other, _ = train(population(MAPPO, **NORMALISED), learner="sequential")
    torch.testing.assert_close(bits(one), bits(other), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("wants", [(False, True), (True, False)])
@pytest.mark.parametrize("learner", ["fused", "sequential"])
def test_statistics_are_of_the_rollouts_of_teams_that_normalise(wants: tuple[bool, ...], learner: Any) -> None:
    pop = [population(IPPO, 1, normalize_observations=one)[0].clone(i) for i, one in enumerate(wants)]
    pop, _ = train(pop, learner=learner)
    counts = {one.normalize_observations: one.observation_statistics.count for one in pop}
    assert counts == {True: 3 * 512, False: 0}  # rows of one member of three agents


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_a_resumed_run_is_the_run_that_never_stopped(cls: Any, tmp_path: Path) -> None:
    more = {"normalize_observations": True}
    whole, _ = train(population(cls, **more), max_steps=1024, resume=tmp_path / "whole")
    train(population(cls, **more), max_steps=512, resume=tmp_path / "stopped")
    again, _ = train(population(cls, **more), max_steps=1024, resume=tmp_path / "stopped")
    assert torch.equal(bits(whole), bits(again))
    statistics, resumed = whole[0].observation_statistics, again[0].observation_statistics
    assert statistics.count == resumed.count == 2 * 3 * 1024  # rows of two members of three agents
    for group, entries in statistics.items():
        np.testing.assert_array_equal(entries["var"], resumed[group]["var"])
    assert getattr(whole[0], "value_statistics", None) == getattr(again[0], "value_statistics", None)


def test_a_member_that_diverges_is_quarantined_and_the_others_go_on() -> None:
    pop = population(MAPPO, 3)
    alone = [agent.clone() for agent in pop]
    with torch.no_grad():
        next(iter(pop[1].actors["a"].parameters())).fill_(torch.nan)
    tournament = TournamentSelection(2, True, 3, 1, seed=4)
    pop, fitness = train(pop, max_steps=256, tournament=tournament, mutation=Mutations(1, 0, 0, 0, 0, 0, rand_seed=0))
    assert torch.isfinite(bits(pop)).all()
    expected, _ = train(alone, max_steps=256, tournament=None)
    sound = [bits([expected[0]]), bits([expected[2]])]
    assert all(any(torch.equal(bits([agent]), one) for one in sound) for agent in pop), "copies of the sound ones"
    assert fitness[0][1] == -np.inf or not np.isfinite(fitness[0][1])


def test_what_is_stored_of_a_step_is_said_agent_by_agent() -> None:
    generation: Any = object.__new__(TeamGeneration)
    generation.agents, generation.watch = population(IPPO, 1), SimpleNamespace(lanes=None)
    generation._reward = reward = np.arange(9.0).reshape(3, 3)
    no = np.zeros((3, 3), bool)
    acted, terminated = ~no, no.copy()
    acted[1, 1] = False  # away: its team ends without it
    terminated[0, 0] = terminated[1, [0, 2]] = True
    defined = np.full((3, 3), np.nan)
    defined[2, 2] = 0.5  # the environment acted for solo
    batch = SimpleNamespace(
        team=SimpleNamespace(reward=reward, terminated=terminated, truncated=no, acted=acted, defined=defined),
        terminated=np.array([False, True, False]), truncated=np.array([False, False, True]),
        mask=np.array([True, True, True]), final_obs={PRESENT: np.array([[0, 1, 1], [0, 0, 0], [1, 1, 0]])},
    )  # fmt: skip
    stored, ended, cut, decided = generation._by_agent(batch)
    assert stored is reward
    # Of the third team, which a time limit ended, nothing was said: who is there in the end was cut off.
    assert ended.tolist() == [[True, False, False], [True, True, True], [False, False, True]]
    assert cut.tolist() == [[False] * 3, [False] * 3, [True, True, False]]
    assert decided.tolist() == [[True] * 3, [True, False, True], [True, True, False]]
    batch.mask = np.array([True, True, False])  # replaced: no transition, and no end that it led to
    _, ended, cut, decided = generation._by_agent(batch)
    assert not (ended[2] | cut[2] | decided[2]).any()


def test_rewards_are_divided_by_the_scale_of_the_team() -> None:
    options = LoopOptions(max_steps=256, evo_steps=128, eval_episodes=1, normalize_rewards=True)
    source, pop = TeamRolloutCollector(environment(), options), population(IPPO, 1)
    source.open(pop, 7)
    lanes, raw, kept = source.lanes, [], []

    class Seen(TeamGeneration):
        def store(self, reward: np.ndarray, batch: Any) -> None:
            super().store(reward, batch)
            raw.append(batch.team.reward)

        def _rollout(self, group: Any) -> Any:
            learned = group.buffer.stored("reward")
            np.testing.assert_allclose(learned, np.stack(raw[-len(learned) :]) * self.rewards.factors[0])
            kept.append(float(self.rewards.factors[0]))
            return super()._rollout(group)

    shard = Shard(pop, [0], 7, 0, 0, 32, Shared(None, source.shared[0].rewards))
    with source.adopted(pop) as learner:
        assert sum(Seen(shard, lanes, learner, options).run()) == 256
    assert len(set(kept)) == len(kept) > 1
    source.close()


def test_a_game_in_which_rewards_cancel_has_the_scale_of_its_players() -> None:
    pytest.importorskip("pettingzoo")
    env = make_multi_agent_vect_envs("pettingzoo.classic.tictactoe_v3", 4)
    observed, acted = (
        {a: space(a) for a in env.possible_agents} for space in (env.single_observation_space, env.single_action_space)
    )
    team = IPPO(observed, acted, net_config=NET, learn_step=64, batch_size=32, seed=1)
    team.num_envs = 4
    options = LoopOptions(max_steps=256, evo_steps=128, eval_episodes=1, normalize_rewards=True)
    source = TeamRolloutCollector(env, options)
    source.open([team], 7)
    shard = Shard([team], [0], 7, 0, 0, 32, Shared(None, source.shared[0].rewards))
    with source.adopted([team]) as learner:
        generation = TeamGeneration(shard, source.lanes, learner, options)
        assert sum(generation.run()) == 128
    assert 0.5 < generation.rewards.factors[0] < 20  # of sums, which are 0, it would be 1e4
    source.close()


def test_episodes_of_teams_are_not_carried_on() -> None:
    with pytest.raises(ConfigError, match="carry_envs"):
        train(population(IPPO), carry_envs=True)


def test_scores_are_given_by_agent_where_they_are_not_summed() -> None:
    summed, rows = train(population(IPPO))[1], train(population(IPPO), sum_scores=False)[1]
    agents = len(population(IPPO, 1)[0].agent_ids)
    assert all(len(row) == agents for generation in rows for row in generation)
    assert summed[0] == pytest.approx([sum(row) for row in rows[0]]), "one generation, before selection differs"


def test_mistakes_are_named() -> None:
    space = spaces.Box(-1, 1, (2,))
    with pytest.raises(AlgorithmError, match=r"DQN trains one agent. fix: train_off_policy"):
        train([DQN(space, spaces.Discrete(2))])
    with pytest.raises(AlgorithmError, match=r"PPO trains one agent. fix: train_on_policy"):
        train([PPO(space, spaces.Discrete(2))])
    with pytest.raises(AlgorithmError, match="MADDPG learns from replay"):
        train([MADDPG(*(dict(part) for part in TeamRolloutCollector.spaces(environment())))])
    with pytest.raises(ConfigError, match="Did you mean 'chunked'"):
        population(MAPPO, 1, recurrent=True, net_config=None, bptt_sequence_type="chunk")
    with pytest.raises(TypeError, match="All actor networks must be instances"):
        population(IPPO, 1, actor_networks={"a": torch.nn.Linear(2, 2)})
    with pytest.raises(ShapeError, match="without next_obs"):
        population(IPPO, 1)[0].learn({name: {"a_0": [1]} for name in ("observations", "actions", "log_probs", "rewards",
                                                                     "dones", "values", "next_done")})  # fmt: skip


# --- the published face -----------------------------------------------------------------------------------------------


def test_actions_have_four_dicts_and_masks_and_decisions_of_the_environment_are_heeded() -> None:
    team = population(IPPO, 1)[0]
    obs = {a: np.zeros((5, 2), np.float32) for a in ("a_0", "solo")}
    infos = {"a_0": {"action_mask": np.array([0, 1])}, "solo": {"env_defined_actions": np.array([0.25])}}
    action, log_prob, entropy, value = team.get_action(obs, infos)
    for found in (action, log_prob, entropy, value):
        assert sorted(found) == ["a_0", "solo"]
        assert all(len(x) == 5 for x in found.values())
    assert action["a_0"].tolist() == [4] * 5
    assert log_prob["a_0"].tolist() == [0.0] * 5
    np.testing.assert_allclose(action["solo"], 0.25)
    np.testing.assert_allclose(entropy["solo"], 0.5 + 0.5 * np.log(2 * np.pi) + np.log(0.6), atol=0.1)
    team.set_training_mode(False)
    few = population(IPPO, 1, action_batch_size=2)[0]
    few.set_training_mode(False)
    for one, other in zip(team.get_action(obs), few.get_action(obs), strict=True):
        for agent in obs:
            np.testing.assert_allclose(one[agent], other[agent], rtol=1e-5, atol=1e-6)


def test_box_actions_are_clipped_for_the_environment_alone() -> None:
    team = population(IPPO, 1, action_std_init=50.0)[0]
    obs = {a: np.zeros((64, 2), np.float32) for a in OBS}
    action = team.get_action(obs)[0]
    assert np.abs(action["solo"]).max() > 1
    given = team.environment_actions(action)
    np.testing.assert_array_equal(given["solo"], np.clip(action["solo"], -1, 1))
    np.testing.assert_array_equal(given["a_0"], action["a_0"])
    squashed = population(IPPO, 1, net_config={**NET, "squash_output": True})[0]
    assert np.abs(squashed.get_action(obs)[0]["solo"]).max() <= 1


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_a_loop_of_ones_own_learns_what_is_learned_from_the_same_rollout(cls: Any) -> None:
    team, lanes, steps = population(cls, 1, num_envs=4)[0], TeamLanes([Signs] * 4), 6
    twin = team.clone()
    names = ("observations", "actions", "log_probs", "rewards", "dones", "values")
    kept: dict[str, dict[str, list[Any]]] = {name: {a: [] for a in OBS} for name in names}
    buffer, done = twin.make_buffer(steps, 4), np.zeros((4, 3))
    obs, _ = lanes.reset(np.arange(4))
    for _ in range(steps):
        action, log_prob, _, value = team.get_action(obs[AGENTS])
        joined = lanes.team.join(team.environment_actions(action))
        batch = lanes.step(joined)
        row = np.concatenate([action["a_0"][:, None] - 3, action["a_1"][:, None] - 3, action["solo"]], 1)
        for k, a in enumerate(OBS):
            values = (obs[AGENTS][a], action[a], log_prob[a], batch.team.reward[:, k], done[:, k], value[a])
            for name, x in zip(names, values, strict=True):
                kept[name][a].append(x)
        buffer.add(
            obs, row, batch.team.reward, batch.team.terminated, batch.team.truncated,
            np.stack([log_prob[a] for a in OBS], 1), np.stack([value[a] for a in OBS], 1), final_obs=batch.final_obs,
            valid=batch.team.acted,
        )  # fmt: skip
        obs, done = batch.obs, batch.team.terminated.astype(float)
    buffer.last_obs = obs
    before = bits([team])
    loss = team.learn((*kept.values(), obs[AGENTS], {a: done[:, k] for k, a in enumerate(OBS)}))
    assert sorted(loss) == ["a", "solo"]
    assert loss["a"] == pytest.approx(twin.learn_buffer(buffer), rel=1e-6)
    assert not torch.equal(before, bits([team]))
    torch.testing.assert_close(bits([team]), bits([twin]), rtol=1e-6, atol=1e-7)


def test_values_read_the_state_of_the_environment_where_there_is_one() -> None:
    space = spaces.Box(-1, 1, (3,), np.float32)
    team = population(MAPPO, 1, state_space=space)[0]
    obs = {a: np.zeros((2, 2), np.float32) for a in OBS}
    *_, low = team.get_action({**obs, "state": np.full((2, 3), -1, np.float32)})
    *_, high = team.get_action({**obs, "state": np.ones((2, 3), np.float32)})
    assert all((low[a] != high[a]).all() for a in OBS)
    with pytest.raises(ShapeError, match="state"):
        team.get_action(obs)


def test_nobody_decides_for_who_is_not_there() -> None:
    """A group of which nobody acted does not move at all; the other one does."""
    team = population(IPPO, 1, num_envs=2)[0]
    buffer = team.make_buffer(4, 2)
    draw = np.random.default_rng(0)
    there = np.zeros((2, 3), np.int8)
    there[:, 2] = 1
    for _ in range(4):
        obs = {AGENTS: {a: draw.uniform(-1, 1, (2, 2)).astype(np.float32) for a in OBS}, PRESENT: there}
        never = np.zeros((2, 3), bool)
        buffer.add(obs, np.zeros((2, 3), np.float32), draw.normal(size=(2, 3)), never, never,
                   np.zeros((2, 3), np.float32), valid=there.astype(bool))  # fmt: skip
    buffer.last_obs = obs
    before = {name: bits_of(network) for name, network in team.evaluation_networks().items()}
    team.learn_buffer(buffer)
    moved = {name: not torch.equal(before[name], bits_of(n)) for name, n in team.evaluation_networks().items()}
    assert moved == {"actors.a": False, "critics.a": False, "actors.solo": True, "critics.solo": True}


def bits_of(network: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten().clone() for p in network.parameters()])


# --- learning ---------------------------------------------------------------------------------------------------------


def played(controlled: bool, episodes: int = 200) -> float:
    """Mean return, over all agents, of speaker-listener: of random agents, or of a listener that knows the goal."""
    from mpe2 import simple_speaker_listener_v4

    env, rng, total = simple_speaker_listener_v4.parallel_env(max_cycles=25), np.random.default_rng(0), 0.0
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        while env.agents:
            seen, goal = obs["listener_0"], int(obs["speaker_0"].argmax())
            aim = seen[2 + 2 * goal : 4 + 2 * goal] - 0.5 * seen[:2]  # the landmark, less the way it still drifts
            axis = int(np.abs(aim).argmax())
            towards = (0 if abs(aim[axis]) < 0.03 else 2 * axis + (1 if aim[axis] < 0 else 2)) if controlled else None
            chosen = int(rng.integers(5)) if towards is None else towards
            obs, rewards, *_ = env.step({"speaker_0": int(rng.integers(3)), "listener_0": chosen})
            total += sum(rewards.values())
    return total / episodes


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "steps"), [(MAPPO, 96_000), (IPPO, 160_000)])
def test_speaker_and_listener_learn_to_talk(cls: Any, steps: int) -> None:
    """At least 80 % of the way from random agents (about -81) to a listener that knows the goal (about -16)."""
    from mpe2 import simple_speaker_listener_v4

    env = SyncPettingZooVecEnv([lambda: simple_speaker_listener_v4.parallel_env(max_cycles=25)] * 16)
    hidden = {"hidden_size": [64]}
    pop = cls.population(
        1, env.team.observation_spaces, env.team.action_spaces, seed=1, lr=1e-3, batch_size=400, learn_step=3200,
        update_epochs=10, gamma=0.95, net_config={"encoder_config": hidden, "head_config": hidden, "latent_dim": 64},
    )  # fmt: skip
    _, fitness = train(pop, env, max_steps=steps, evo_steps=steps, eval_loop=8, seed=1)
    worst, best = played(False), played(True)
    assert worst < -70
    assert best > -20
    assert fitness[-1][0] >= worst + 0.8 * (best - worst), (fitness, worst, best)


def test_schedules_bring_the_learning_rate_and_the_weight_of_entropy_to_zero_over_the_budget() -> None:
    team = population(IPPO, 1, lr=1e-2, ent_coef=0.1, lr_schedule="linear", ent_schedule="linear")[0]
    other = population(MAPPO, 1, lr=1e-2, ent_coef=0.1)[0]
    for progress, lr, ent_coef in ((0.0, 1e-2, 0.1), (0.25, 7.5e-3, 0.075), (1.0, 0.0, 0.0)):
        team.progress = other.progress = progress
        found = team.update_hyperparameters()
        assert (found["lr"], found["ent_coef"]) == pytest.approx((lr, ent_coef))
        assert (other.update_hyperparameters()["lr"], other.update_hyperparameters()["ent_coef"]) == (1e-2, 0.1)
    with pytest.raises(ConfigError, match=r"unknown lr_schedule 'linaer'. Did you mean 'linear'"):
        population(IPPO, 1, lr_schedule="linaer")
