"""What scripts of the published library do with teams and their memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.base.async_agents import AsyncAgentsWrapper
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.components import MultiAgentReplayBuffer
from agilerl.errors import ConfigError, ShapeError
from agilerl.training.train_multi_agent_off_policy import train_multi_agent_off_policy

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
SEEN = {"car_0": spaces.Box(-1, 1, (2,)), "car_1": spaces.Box(-1, 1, (2,)), "light_0": spaces.Box(-1, 1, (3,))}
DONE: dict[str, Any] = {
    "car_0": spaces.Box(-1, 1, (2,)),
    "car_1": spaces.Box(-1, 1, (2,)),
    "light_0": spaces.Discrete(2),
}
IDS = list(SEEN)
OFF = pytest.mark.parametrize("cls", [MADDPG, MATD3])
EVERY = pytest.mark.parametrize("cls", [MADDPG, MATD3, IPPO, MAPPO])


def team(cls: Any, **more: Any) -> Any:
    return cls(SEEN, DONE, net_config=NET, seed=1, **more)


def experiences(batch: int = 6) -> Any:
    draw = np.random.default_rng(0)
    seen, later = ({a: draw.uniform(-1, 1, (batch, *s.shape)) for a, s in SEEN.items()} for _ in range(2))
    acted = {a: draw.uniform(-1, 1, (batch, 2)) if a != "light_0" else np.ones((batch, 1)) for a in IDS}
    return seen, acted, {a: draw.normal(size=batch) for a in IDS}, later, {a: np.zeros(batch) for a in IDS}


# --- networks and optimisers ------------------------------------------------------------------------------------------


@OFF
def test_losses_networks_and_optimizers_are_found_by_agent_and_by_group(cls: Any) -> None:
    made = team(cls)
    losses = made.learn(experiences())
    assert list(losses) == ["car", "light"]
    assert losses["car_1"] == losses["car"]
    assert losses["light_0"] == losses["light"]
    with pytest.raises(KeyError):
        losses["bus_0"]
    assert made.actors["car_0"] is made.actors["car"]
    assert "light_0" in made.actors
    optimizer = made.actor_optimizers["light_0"]
    assert optimizer is made.actor_optimizers["light"]
    assert optimizer.param_groups[0]["params"][0] is next(iter(made.actors["light"].parameters()))
    with pytest.raises(ConfigError, match="unknown actors 'bus'"):
        made.actors["bus"]


@EVERY
def test_torch_optimizers_are_found_by_group(cls: Any) -> None:
    made = team(cls)
    for optimizers in (made.actor_optimizers, made.critic_optimizers if cls is not MATD3 else made.critic_1_optimizers):
        assert dict(optimizers.items()).keys() == optimizers.optimizer.keys() == {"car", "light"}
        assert optimizers.optimizer["car"] is optimizers["car_0"].optimizer
        assert isinstance(optimizers.optimizer["light"], torch.optim.Adam)


@OFF
def test_a_target_is_moved_towards_its_network(cls: Any) -> None:
    made = team(cls, tau=0.25)
    network, target = made.actors["car"], made.actor_targets["car"]
    with torch.no_grad():
        for p in network.parameters():
            p.add_(1.0)
    before = [p.clone() for p in target.parameters()]
    made.soft_update(network, target)
    for p, old in zip(target.parameters(), before, strict=True):
        torch.testing.assert_close(p, old + 0.25)


@EVERY
@pytest.mark.parametrize("form", [dict, lambda x: list(x.values()), lambda x: {f"{g}_0": n for g, n in x.items()}])
def test_policies_are_replaced_by_assignment_and_then_trained(cls: Any, form: Any) -> None:
    made, other = team(cls), cls(SEEN, DONE, net_config=NET, seed=2)
    policies = {group: other.actors[group].clone() for group in other.actors}
    made.actors = form(policies)
    assert all(made.actors[group] is policies[group] for group in policies)
    obs = {a: np.full((1, *s.shape), 0.5, np.float32) for a, s in SEEN.items()}
    np.testing.assert_array_equal(
        made.get_action(obs, training=False)[0]["car_0"], other.get_action(obs, training=False)[0]["car_0"]
    )
    moved = made.actor_optimizers["car"] if cls in (MADDPG, MATD3) else made.optimizers["car"]
    assert next(iter(policies["car"].parameters())) in set(moved.param_groups[0]["params"])
    with pytest.raises(ConfigError, match=r"actors has nothing for the group 'light'\. fix: one for each group"):
        made.actors = {"car": policies["car"]}


# --- noise ------------------------------------------------------------------------------------------------------------


@OFF
@pytest.mark.parametrize("is_path", [False, True])
def test_noise_is_given_by_agent(cls: Any, is_path: bool) -> None:
    quiet = {"car_0": 0.0, "car_1": np.array([0.0, 0.5]), "light_0": 0.3}
    made = team(cls, expl_noise=quiet, O_U_noise=is_path, mean_noise={"car": 0.0})
    noise = made.draw_exploration(np.random.default_rng(0), (50, 4))[0]
    assert noise.shape == (50, 4, 4)
    assert not noise[..., :3].any()
    assert noise[..., 3].std() > 0.03
    by_hand = team(cls, O_U_noise=is_path)
    by_hand.expl_noise, by_hand.mean_noise = quiet, {"car": 0.0, "light_0": 0.0}
    np.testing.assert_array_equal(by_hand.draw_exploration(np.random.default_rng(0), (50, 4))[0], noise)
    with pytest.raises(ConfigError, match="expl_noise: unknown agent 'bus'"):
        by_hand.expl_noise = {"bus": 0.1}
    shifted = team(cls, expl_noise=0.0, O_U_noise=False, mean_noise={"car_0": 0.25, "car_1": [1, 2]})
    assert shifted.draw_exploration(np.random.default_rng(0), (1, 1))[0].ravel().tolist() == [0.25, 0.25, 1, 2]
    twin = made.clone()
    np.testing.assert_array_equal(twin.expl_noise, made.expl_noise)


@OFF
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bus_0": 0.1}, r"expl_noise: unknown agent 'bus_0'"),
        ({"car_0": 0.1}, r"expl_noise: car_1 has 2 components, got None\. fix: one number"),
        ({"car": [0.1, 0.2, 0.3]}, r"expl_noise: car_0 has 2 components, got \[0\.1, 0\.2, 0\.3\]\. fix: "),
        ({"car": -0.1}, r"expl_noise: car_0 has 2 components, got -0\.1"),
    ],
)
def test_noise_that_fits_no_agent_is_named(cls: Any, given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        team(cls, expl_noise=given)


def test_a_saved_team_keeps_its_noise_by_agent(tmp_path: Any) -> None:
    made = team(MADDPG, expl_noise={"car_0": 0.1, "car_1": [0.2, 0.3]})
    made.save_checkpoint(str(tmp_path / "team.pt"))
    loaded = MADDPG.load(str(tmp_path / "team.pt"))
    assert np.asarray(loaded.expl_noise).tolist() == [0.1, 0.1, 0.2, 0.3]


# --- memory -----------------------------------------------------------------------------------------------------------


def test_fields_of_a_team_are_stored_without_a_meaning_where_their_names_have_none() -> None:
    memory = MultiAgentReplayBuffer(8, ["seen", "card", "gain"], ["a", "b"], seed=0)
    rows = [({"a": np.array([k, 2.0 * k]), "b": np.array([[k]])}, {"a": k, "b": k + 5}, {"a": 0.5 * k, "b": -1.0})
            for k in range(4)]  # fmt: skip
    for seen, card, gain in rows[:3]:
        memory.save_to_memory(seen, card, gain)
    memory.save_to_memory(*rows[3][:2], {"a": 1.5})  # b got nothing
    assert (len(memory), memory.counter) == (4, 4)
    seen, card, gain = memory.sample(32)
    k = seen["a"][:, 0]
    assert seen["a"].shape == (32, 2)
    assert seen["b"].shape == (32, 1, 1)
    assert card["a"].shape == gain["b"].shape == (32, 1)
    torch.testing.assert_close(seen["a"][:, 1], 2 * k)
    torch.testing.assert_close(seen["b"][:, 0, 0], k)
    torch.testing.assert_close(card["b"][:, 0], k + 5)
    torch.testing.assert_close(gain["a"][:, 0], 0.5 * k)
    assert gain["b"][:, 0].isnan().tolist() == (k == 3).tolist()
    assert [experience.card["b"].tolist() for experience in memory.memory] == [[5], [6], [7], [8]]
    first = memory.memory[0]
    assert first._fields == ("seen", "card", "gain")


def test_own_fields_may_be_dictionaries_and_tuples() -> None:
    memory = MultiAgentReplayBuffer(4, ["seen"], ["a", "b"], seed=0)
    memory.save_to_memory({"a": {"x": np.array([1.0]), "y": 2}, "b": (np.array([3.0, 4.0]), np.array([5]))})
    (seen,) = memory.sample(1)
    assert seen["a"]["x"].tolist() == [[1]]
    assert seen["a"]["y"].tolist() == [[2]]
    assert [part.tolist() for part in seen["b"]] == [[[3, 4]], [[5]]]


def test_the_first_rows_of_own_fields_tell_the_shapes_of_all_agents() -> None:
    memory = MultiAgentReplayBuffer(8, ["seen", "gain"], ["a", "b"])
    with pytest.raises(ShapeError, match=r"the first rows have no gain of b.*fix: begin with rows of all agents"):
        memory.save_to_memory({"a": 1.0, "b": 2.0}, {"a": 1.0})


@OFF
def test_a_team_learns_from_five_own_fields_as_from_the_published_ones(cls: Any) -> None:
    names = [["s", "u", "r", "s2", "end"], ["state", "action", "reward", "next_state", "done"]]
    losses = []
    for each in names:
        memory = MultiAgentReplayBuffer(20, each, IDS, seed=3)
        memory.save_to_memory(*experiences(), is_vectorised=True)
        losses.append(team(cls).learn(memory.sample(4)))
    assert losses[0] == losses[1]


def test_a_training_function_needs_fields_that_it_knows() -> None:
    class Env:
        metadata: dict[str, Any] = {"name": "cars"}  # noqa: RUF012
        possible_agents, agents = IDS, IDS
        render_mode = None

        def observation_space(self, agent: str) -> Any:
            return SEEN[agent]

        def action_space(self, agent: str) -> Any:
            return DONE[agent]

        def reset(self, seed: Any = None, options: Any = None) -> Any:
            raise AssertionError

        step = reset

    with pytest.raises(ConfigError, match=r"the memory has the fields \['s', 'u'\], which .*fix: field_names="):
        train_multi_agent_off_policy(
            Env(), "cars", "MADDPG", [team(MADDPG)], MultiAgentReplayBuffer(9, ["s", "u"], IDS), verbose=False
        )


# --- agents at different frequencies ----------------------------------------------------------------------------------


def rollout(lengths: dict[str, int], pad: bool) -> Any:
    """Lists of the last `lengths` of six steps; with `pad` None stands for the steps before."""
    made, draw = team(IPPO), np.random.default_rng(3)
    seen = [{a: draw.uniform(-1, 1, (2, *s.shape)).astype(np.float32) for a, s in SEEN.items()} for _ in range(7)]
    given: dict[str, Any] = {name: {a: [] for a in IDS} for name in
                             ("observations", "actions", "log_probs", "rewards", "dones", "values")}  # fmt: skip
    for t in range(6):
        action, log_prob, _, value = made.get_action(seen[t])
        for a in IDS:
            step = (seen[t][a], action[a], log_prob[a], np.full(2, 0.5 * t), np.zeros(2), value[a])
            if t >= 6 - lengths[a]:
                for name, x in zip(given, step, strict=True):
                    given[name][a].append(x)
            elif pad:
                for name in given:
                    given[name][a].append(np.zeros(2) if name in ("rewards", "dones") else None)
    return {**given, "next_obs": seen[6], "next_done": {a: np.zeros(2) for a in IDS}}


@pytest.mark.parametrize("form", [np.stack, lambda rows: torch.as_tensor(np.stack(rows))], ids=["arrays", "tensors"])
def test_rollouts_of_arrays_and_tensors_are_those_of_lists(form: Any) -> None:
    weights, given = [], rollout({"car_0": 6, "car_1": 3, "light_0": 4}, pad=False)
    arrays = {k: {a: form(rows) for a, rows in v.items()} for k, v in given.items() if not k.startswith("next")}
    for one in (given, {**given, **arrays}):
        made = team(IPPO, batch_size=4)
        AsyncAgentsWrapper(made).learn(one)
        weights.append([p.detach().clone() for p in made.actors["car"].parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))


@pytest.mark.parametrize("as_tuple", [True, False])
def test_agents_of_different_lengths_learn_from_the_steps_they_have(as_tuple: bool) -> None:
    lengths = {"car_0": 6, "car_1": 3, "light_0": 4}
    weights = []
    for pad in (True, False):
        made, given = team(IPPO, batch_size=4), rollout(lengths, pad)
        AsyncAgentsWrapper(made).learn(tuple(given.values()) if as_tuple else given)
        weights.append([p.detach().clone() for group in ("car", "light") for p in made.actors[group].parameters()])
    assert all(torch.equal(p, q) for p, q in zip(*weights, strict=True))
    untrained = [p for group in ("car", "light") for p in team(IPPO).actors[group].parameters()]
    assert any(not torch.equal(p, q) for p, q in zip(weights[0], untrained, strict=True))


def test_values_that_read_all_agents_need_steps_of_one_time() -> None:
    given = rollout({"car_0": 6, "car_1": 3, "light_0": 4}, pad=False)
    with pytest.raises(ConfigError, match=r"MAPPO got lists of different lengths: {'car_0': 6, 'car_1': 3.*fix: None"):
        AsyncAgentsWrapper(team(MAPPO)).learn(given)
