"""Teams with a memory: the published face, evaluation, evolution, files and loops of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from small_envs import ParallelGame

from agilerl.algorithms.base.evaluation import _GreedyActor
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.envs.protocol import AGENTS
from agilerl.envs.teams import TeamLanes
from agilerl.errors import AlgorithmError, ConfigError, ShapeError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.networks.q_networks import ContinuousQNetwork
from agilerl.rollouts.evaluate import evaluate, first_episodes
from agilerl.training.train_multi_agent_on_policy import train_multi_agent_on_policy
from agilerl.vector import SyncPettingZooVecEnv

NET: dict[str, Any] = {
    "encoder_config": {"hidden_state_size": 8, "min_hidden_state_size": 4}, "head_config": {"hidden_size": [8]},
    "latent_dim": 8, "min_latent_dim": 4,
}  # fmt: skip
OBS = {name: spaces.Box(-1, 1, (2,), np.float32) for name in ("a_0", "a_1", "solo")}
ACTIONS: dict[str, Any] = {
    "a_0": spaces.Discrete(2), "a_1": spaces.Discrete(2), "solo": spaces.Box(-1, 1, (1,), np.float32)
}  # fmt: skip


class Relay(ParallelGame):
    """Six steps. `a_0` ends after the second one and is back in the fourth; everyone sees random numbers and the time,
    and gets 1 for a high action where the number that it saw first was positive, else for a low one."""

    observed, acted, length = OBS, ACTIONS, 6

    def observe(self) -> dict[str, np.ndarray]:
        numbers = {a: self.rng.uniform(-1, 1) for a in OBS}
        self.first = numbers if self.age == 0 else self.first
        return {a: np.array([numbers[a], self.age / 6], np.float32) for a in self.present()}

    def present(self) -> list[str]:
        return [a for a in OBS if a != "a_0" or self.age not in (2, 3)]

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        self.age += 1
        seen, over = self.observe(), self.age == self.length
        high = {a: float(np.ravel(x)[0]) > 0 for a, x in actions.items()}
        rewards = {a: float(high[a] == (self.first[a] > 0)) for a in actions}
        ends = dict.fromkeys(OBS, over) | ({"a_0": True} if self.age == 2 else {})
        self.agents = [] if over else self.present()
        return seen, rewards, ends, dict.fromkeys(OBS, False), {a: {} for a in OBS}


def population(cls: Any, size: int = 2, **more: Any) -> list[Any]:
    arguments = {"net_config": NET, "lr": 1e-2, "batch_size": 8, "learn_step": 48, "max_seq_len": 4} | more
    made: list[Any] = cls.population(size, OBS, ACTIONS, seed=1, recurrent=True, **arguments)
    return made


def train(pop: list[Any], **more: Any) -> tuple[list[Any], Any]:
    env = SyncPettingZooVecEnv([Relay] * 4)
    arguments = {"max_steps": 192, "evo_steps": 96, "seed": 3, "verbose": False} | more
    return train_multi_agent_on_policy(env, "relay", pop=pop, **arguments)


def bits(agents: list[Any]) -> torch.Tensor:
    networks = [n for agent in agents for n in agent.evaluation_networks().values()]
    return torch.cat([p.detach().flatten() for network in networks for p in network.parameters()])


# --- acting -----------------------------------------------------------------------------------------------------------


def test_a_memory_goes_on_through_get_action_and_belongs_to_one_agent() -> None:
    team, draw = population(IPPO, 1)[0], np.random.default_rng(0)
    few = team.clone()
    few.action_batch_size = 2
    obs = {a: draw.uniform(-1, 1, (5, 2)).astype(np.float32) for a in OBS}
    *_, hidden = team.get_action(obs, training=False)
    assert sorted({key.partition(":")[0] for key in hidden}) == sorted(OBS)
    assert {tuple(part.shape) for part in hidden.values()} == {(1, 5, 8)}
    *_, begun, _ = team.get_action(obs, training=False)
    action, log_prob, entropy, value, after = team.get_action(obs, training=False, hidden_state=hidden)
    assert all((value[a] != begun[a]).all() for a in OBS), "it remembers"
    for one, other in zip(few.get_action(obs, training=False, hidden_state=hidden)[:4],
                          (action, log_prob, entropy, value), strict=True):  # fmt: skip
        for agent in OBS:
            np.testing.assert_allclose(one[agent], other[agent], rtol=1e-5, atol=1e-6)
    *_, later = team.get_action({a: obs[a] for a in ("a_0", "solo")}, training=False, hidden_state=hidden)
    for key, part in later.items():
        assert torch.equal(part, hidden[key] if key.startswith("a_1") else after[key]), key
    over = torch.zeros(5, 3, dtype=torch.bool)
    over[3, 0] = True
    for key, part in team.forget(after, over).items():
        kept = after[key].clone()
        if key.startswith("a_0"):
            kept[:, 3] = 0
        assert torch.equal(part, kept), key


def test_in_evaluation_an_agent_that_comes_back_begins_anew() -> None:
    team, noted = population(IPPO, 1)[0], []
    lanes = TeamLanes([Relay] * 2, reset_ended=False)

    def act(obs: Any, mask: Any) -> np.ndarray:
        noted.append(None if team._playing is None else {k: bool(x.any()) for k, x in team._playing.items()})
        found: np.ndarray = team._greedy(obs, mask)
        return found

    first_episodes(act, lanes, np.arange(2), np.ones(2, bool), None, begin=team.begin_episodes, left=team.end_episodes)
    assert noted[0] is None
    for step, memory in enumerate(noted[1:], 1):
        for key, is_set in memory.items():
            assert is_set == (step not in (2, 3, 4) or not key.startswith("a_0")), (step, key)


def test_a_population_over_rows_is_evaluated_as_each_of_its_members() -> None:
    pop, seeds = population(IPPO, 2), np.arange(20)
    with torch.no_grad():  # so that what is remembered decides
        for network in (n for agent in pop for n in agent.evaluation_networks().values()):
            for parameter in network.parameters():
                parameter.mul_(6 if parameter.dim() > 1 else 0)
    learner = Learner(pop, choose(pop, "fused"))
    found = evaluate(learner, TeamLanes([Relay] * 8, reset_ended=False), 2, 20, seeds).returns
    learner.end_episodes = lambda over: None  # type: ignore[method-assign]
    forgetful = evaluate(learner, TeamLanes([Relay] * 8, reset_ended=False), 2, 20, seeds).returns
    learner.release()
    assert not np.array_equal(found, forgetful), "an agent that comes back would act on what it saw before"
    for agent, returns in zip(pop, found, strict=True):
        lanes = TeamLanes([Relay] * 5, reset_ended=False)
        np.testing.assert_array_equal(evaluate(_GreedyActor(agent), lanes, 1, 20, seeds).returns[0], returns)


@pytest.mark.parametrize("cls", [IPPO, MAPPO])
def test_evaluation_of_a_population_is_that_of_its_members(cls: Any) -> None:
    pop, fitness = train(population(cls), max_steps=96, eval_steps=6)
    for agent, score in zip(pop, fitness[0], strict=True):
        again = agent.clone()
        assert again.evaluate(8, seed=3, env=SyncPettingZooVecEnv([Relay] * 2)).mean == pytest.approx(
            agent.evaluate(8, seed=3, env=SyncPettingZooVecEnv([Relay] * 8)).mean
        )
        assert 0 <= score <= 16


# --- learning ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cls", "options"), [(IPPO, {}), pytest.param(MAPPO, {}, marks=pytest.mark.slow), (IPPO, {"share_encoders": True})]
)
def test_a_resumed_run_is_the_run_that_never_stopped_with_mutations_of_memories(
    cls: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    def run(steps: int, path: str) -> list[Any]:
        evolution = {
            "tournament": TournamentSelection(2, True, 2, 1, seed=4),
            "mutation": Mutations(0, 1, 0.2, 0, 0, 0, rand_seed=8 if options else 6),
        }
        return train(population(cls, **options), max_steps=steps, resume=tmp_path / path, **evolution)[0]

    whole = run(288, "whole")
    run(96, "stopped")
    again = run(288, "stopped")
    assert torch.equal(bits(whole), bits(again))
    widths = [shape for agent in whole for shape in agent.hidden_state_architecture.values()]
    assert any(shape != (1, 8) for shape in widths), "a memory has grown or shrunk"
    assert {agent.share_encoders for agent in whole} == {bool(options)}
    for agent in (
        () if options else whole
    ):  # what happens to a policy happens to its value, in MAPPO's to its dense layers
        for group in ("a", "solo"):
            actor, value = agent.actors[group].encoder, agent.critics[group].describe()
            assert value.startswith(f"lstm {actor.hidden_state_size}x1" if cls is IPPO else "multi"), value
            assert cls is IPPO or f"(vector_mlp: [{actor.hidden_state_size}])" in value, value


@pytest.mark.parametrize(("cls", "options"), [(IPPO, {}), (MAPPO, {}), (IPPO, {"share_encoders": True})])
def test_a_saved_team_has_its_memory(cls: Any, options: dict[str, Any], tmp_path: Path) -> None:
    team = population(cls, 1, **options)[0]
    team.save_checkpoint(tmp_path / "team.pt")
    loaded = cls.load(tmp_path / "team.pt")
    assert loaded.recurrent
    assert loaded.hidden_state_architecture == team.hidden_state_architecture
    obs = {a: np.ones((2, 2), np.float32) for a in OBS}
    *_, hidden = team.get_action(obs, training=False)
    one, other = (t.get_action(obs, training=False, hidden_state=hidden) for t in (team, loaded))
    for agent in OBS:
        np.testing.assert_array_equal(one[0][agent], other[0][agent])
    assert bits([team]).equal(bits([loaded]))
    again = cls.from_policy(team.policy_spec(), team.policy_state())
    assert again.recurrent
    assert again.share_encoders == loaded.share_encoders == bool(options)


@pytest.mark.parametrize(("cls", "options"), [(IPPO, {}), (MAPPO, {}), (IPPO, {"share_encoders": True})])
def test_a_loop_of_ones_own_learns_what_is_learned_from_the_same_rollout(cls: Any, options: dict[str, Any]) -> None:
    team, lanes, steps = population(cls, 1, num_envs=3, **options)[0], TeamLanes([Relay] * 3), 8
    twin = team.clone()
    names = ("observations", "actions", "log_probs", "rewards", "dones", "values")
    kept: dict[str, Any] = {name: {a: [] for a in OBS} for name in names}
    buffer, done = twin.make_buffer(steps, 3), np.zeros((3, 3))
    obs, _ = lanes.reset(np.arange(3))
    hidden, before = team.get_initial_hidden_state(3), []
    mean, deviation = team.value_scale()
    for _ in range(steps):
        there = obs["present"].astype(bool)
        shown = {a: x for k, (a, x) in enumerate(obs[AGENTS].items()) if there[:, k].all()}
        before.append(hidden)
        action, log_prob, _, value, hidden = team.get_action(shown, hidden_state=hidden)
        filled = {a: action.get(a, np.zeros((3, *ACTIONS[a].shape), np.float32)) for a in OBS}
        batch = lanes.step(lanes.team.join(team.environment_actions(filled)))
        rows = {"log_prob": [], "value": []}
        for k, a in enumerate(OBS):
            reward = np.where(batch.team.acted[:, k], batch.team.reward[:, k], np.nan)
            rows["log_prob"].append(log_prob.get(a, np.zeros(3)))
            rows["value"].append((value.get(a, np.zeros(3)) - mean[k]) / deviation[k])
            values = (obs[AGENTS][a], filled[a], rows["log_prob"][-1], reward, done[:, k], value.get(a, np.zeros(3)))
            for name, x in zip(names, values, strict=True):
                kept[name][a].append(x)
        buffer.add(
            obs, np.concatenate([filled[a].reshape(3, -1) for a in OBS], 1), batch.team.reward, batch.team.terminated,
            batch.team.truncated, np.stack(rows["log_prob"], 1), np.stack(rows["value"], 1), final_obs=batch.final_obs,
            valid=batch.team.acted, hidden={key: part.numpy() for key, part in before[-1].items()},
        )  # fmt: skip
        over = batch.team.terminated | batch.team.truncated
        hidden = team.forget(hidden, torch.from_numpy(over))
        obs, done = batch.obs, batch.team.terminated.astype(float)
    buffer.last_obs = obs
    last_there = {a: x for k, (a, x) in enumerate(obs[AGENTS].items()) if obs["present"][:, k].all()}
    *_, last, _ = team.get_action(last_there, hidden_state=hidden)
    buffer.last_value = np.stack([last.get(a, np.zeros(3)) for a in OBS], 1)
    start = bits([team])
    team.learn({
        **kept, "next_obs": last_there, "next_done": {a: done[:, k] for k, a in enumerate(OBS)},
        "hidden_states": before, "last_values": last,
    })  # fmt: skip
    twin.learn_buffer(buffer)
    assert not torch.equal(start, bits([team]))
    # Values pass through MAPPO's scale and back in float32 here, and Adam divides by gradients that are nearly 0.
    torch.testing.assert_close(bits([team]), bits([twin]), rtol=1e-6, atol=1e-6)


def test_shared_encoders_of_a_group_are_one_network_that_mutates_once() -> None:
    (team,) = IPPO.population(1, OBS, ACTIONS, seed=1, share_encoders=True)
    obs = {a: np.ones((2, 2), np.float32) for a in OBS}
    assert set(team.registry.all_registered()) == {"actors.a", "actors.solo"}
    assert list(team.critics) == ["a", "solo"]
    twin, before = team.clone(3), team.get_action(obs, training=False)[3]
    for name in ("head_net.add_layer", "head_net.add_node", "add_latent_node", "encoder.add_node"):
        for group in team.actors.values():
            group.apply_mutation(name)
        for agent, value in team.get_action(obs, training=False)[3].items():
            np.testing.assert_allclose(value, before[agent], atol=1e-5)
        assert team.actors["a"].value_net.hidden_size == team.actors["a"].head_net.hidden_size
    np.testing.assert_allclose(team.critics["a"](obs["a_0"]).detach()[:, 0], before["a_0"], atol=1e-5)
    with torch.no_grad():
        for parameter in team.actors["a"].encoder.parameters():
            parameter.zero_()
    np.testing.assert_array_equal(twin.get_action(obs, training=False)[3]["a_0"], before["a_0"])
    assert not np.allclose(team.get_action(obs, training=False)[3]["a_0"], before["a_0"])


# --- mistakes ---------------------------------------------------------------------------------------------------------


def test_mistakes_are_named() -> None:
    team, obs = population(IPPO, 1)[0], {a: np.zeros((2, 2), np.float32) for a in OBS}
    with pytest.raises(ShapeError, match=r"'a_0:actors_encoder_h' of shape \(1, 3, 8\); expected \(1, 2, 8\)"):
        team.get_action(obs, hidden_state=team.get_initial_hidden_state(3))
    plain = IPPO(OBS, ACTIONS, seed=0)
    with pytest.raises(ShapeError, match=r"no memory\. fix: recurrent=True"):
        plain.get_action(obs, hidden_state=team.get_initial_hidden_state(2))
    image = {"a_0": spaces.Box(0, 255, (3, 4, 16, 16), np.uint8)}
    with pytest.raises(ConfigError, match="EvolvableLSTM reads vectors; got images"):
        IPPO(image, {"a_0": spaces.Discrete(2)}, recurrent=True)
    who = ContinuousQNetwork(OBS["a_0"], spaces.Box(0, 1, (2,)), recurrent=True)
    with pytest.raises(AlgorithmError, match="which a recurrent one cannot take"):
        MAPPO(OBS, ACTIONS, critic_networks={"a": who})
