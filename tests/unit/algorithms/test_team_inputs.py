"""What teams take: rows of every form, masks beside observations, NaN for absence, networks of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import MADDPG, MATD3
from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.teams import deterministic
from agilerl.algorithms.teams import evaluation as team_playing
from agilerl.components.multi_agent_replay_buffer import MultiAgentReplayBuffer
from agilerl.envs.protocol import TeamObservations
from agilerl.errors import ConfigError, ShapeError
from agilerl.modules.base import ModuleDict
from agilerl.networks import DeterministicActor

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
EVERY = pytest.mark.parametrize("cls", [MADDPG, MATD3, IPPO, MAPPO])
FIELDS = ["state", "action", "reward", "next_state", "done"]
SEEN: dict[str, Any] = {
    "a_0": spaces.Discrete(3, start=1), "b_0": spaces.MultiDiscrete([2, 3], start=[0, 2]), "c_0": spaces.MultiBinary(2),
}  # fmt: skip
DONE: dict[str, Any] = {"a_0": spaces.Discrete(2), "b_0": spaces.Box(-1, 1, (2,)), "c_0": spaces.MultiDiscrete([2, 3])}
ROWS: dict[str, Any] = {"a_0": np.array([1, 3]), "b_0": np.array([[0, 2], [1, 4]]), "c_0": np.array([[0, 1], [1, 1]])}
MASKED_SPACE = spaces.Dict(observation=spaces.Box(-1, 1, (2,)), action_mask=spaces.Box(0, 1, (3,), np.int8))


def team(cls: Any, seen: Any = SEEN, done: Any = DONE, **more: Any) -> Any:
    return cls(seen, done, **{"net_config": NET, "seed": 1, **more})


def values(found: Any) -> list[list[float]]:
    """All that `get_action` gives, as numbers."""
    return [np.asarray(own[a]).ravel().tolist() for own in found for a in sorted(own)]


FORMS: dict[str, Any] = {
    "numbers as columns of floats": lambda x: x.reshape(2, -1).astype(np.float32),
    "tensors": torch.as_tensor,
    "columns in tensors": lambda x: torch.as_tensor(x.reshape(2, -1)).double(),
}


@EVERY
@pytest.mark.parametrize("form", FORMS)
def test_numbered_observations_are_read_alike_in_every_form(cls: Any, form: str) -> None:
    made = team(cls)
    expected = values(made.get_action(ROWS, training=False))
    assert values(made.get_action({a: FORMS[form](x) for a, x in ROWS.items()}, training=False)) == expected
    first = values(made.get_action({a: x[0] for a, x in ROWS.items()}, training=False))
    np.testing.assert_allclose(np.concatenate(first), np.concatenate([x[: len(x) // 2] for x in expected]), atol=1e-6)


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
def test_a_team_learns_from_a_memory_of_numbered_observations_what_it_learns_from_rows(cls: Any) -> None:
    draw, memory = np.random.default_rng(0), MultiAgentReplayBuffer(50, FIELDS, list(SEEN), seed=3)
    for a, space in DONE.items():
        space.seed(ord(a[0]))
    for _ in range(12):
        state, later = ({a: np.stack([s.sample() for _ in range(2)]) for a, s in SEEN.items()} for _ in range(2))
        action = {a: np.stack([s.sample() for _ in range(2)]) for a, s in DONE.items()}
        reward = {a: draw.normal(size=2) for a in SEEN}
        memory.save_to_memory(state, action, reward, later, {a: np.zeros(2) for a in SEEN}, is_vectorised=True)
    sample = memory.sample(8)
    plain = tuple({a: x.numpy() for a, x in part.items()} for part in sample)
    assert sample[0]["a_0"].shape == (8, 1) or sample[0]["a_0"].shape == (8,)
    columns = ({a: x.reshape(8, -1) for a, x in part.items()} for part in plain)
    flat = ({a: x[:, 0] if a == "a_0" else x for a, x in part.items()} for part in map(dict, columns))
    losses = [team(cls).learn(each) for each in (sample, plain, tuple(flat))]
    assert losses[0] == losses[1] == losses[2]
    assert all(np.isfinite(pair[-1]) for pair in losses[0].values())


# --- masks ------------------------------------------------------------------------------------------------------------


def masked(mask: Any, lanes: int = 1) -> Any:
    seen = np.zeros((lanes, 2), np.float32) if lanes > 1 else np.zeros(2, np.float32)
    return {"observation": seen, "action_mask": np.asarray(mask, np.int8)}


def players(cls: Any, **more: Any) -> Any:
    return team(
        cls, dict.fromkeys(("p_0", "p_1"), MASKED_SPACE), dict.fromkeys(("p_0", "p_1"), spaces.Discrete(3)), **more
    )


@EVERY
@pytest.mark.parametrize("training", [True, False])
def test_masks_beside_observations_are_followed_as_those_in_infos_are(cls: Any, training: bool) -> None:
    obs = {"p_0": masked([0, 0, 1]), "p_1": masked([1, 0, 0])}
    for _ in range(8):
        action = players(cls).get_action(obs, {}, training=training)[0]
        assert (action["p_0"].item(), action["p_1"].item()) == (2, 0)
    plain = {a: x["observation"] for a, x in obs.items()}
    infos = {a: {"action_mask": x["action_mask"]} for a, x in obs.items()}
    first, second = players(cls), players(cls)
    assert values(first.get_action(obs, training=training)) == values(second.get_action(plain, infos, training))
    both = players(cls).get_action(obs, {"p_0": {"action_mask": [0, 1, 0]}, "p_1": None}, training=training)[0]
    assert both["p_0"].item() == 1  # infos are about this moment


@EVERY
def test_masks_have_one_entry_for_each_environment_or_for_each_component(cls: Any) -> None:
    made, rows = players(cls), np.zeros((2, 2), np.float32)
    entries = np.array([None, np.array([0, 0, 1])], dtype=object)
    found = made.get_action({"p_0": rows}, {"p_0": {"action_mask": entries}}, training=False)[0]["p_0"]
    assert found[1] == 2
    free = made.get_action({"p_0": rows}, training=False)[0]["p_0"]
    assert found[0] == free[0]
    parts = team(cls).get_action(
        {"c_0": ROWS["c_0"][:1]}, {"c_0": {"action_mask": (np.array([0, 1]), np.array([0, 0, 1]))}}, training=False
    )[0]
    assert parts["c_0"].tolist() == [[1, 2]]


@EVERY
def test_a_mask_beside_an_observation_of_another_length_is_named(cls: Any) -> None:
    with pytest.raises(ShapeError, match=r"agent p_0, row 0: action_mask has 2 entries .*expected for Discrete\(3\)"):
        players(cls).get_action({"p_0": masked([1, 0])})


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
def test_masks_beside_observations_reach_the_update(cls: Any) -> None:
    draw, batch = np.random.default_rng(0), 6
    rows = lambda: draw.uniform(-1, 1, (batch, 2)).astype(np.float32)  # noqa: E731
    legal = [np.tile(mask, (batch, 1)) for mask in ([0, 1, 1], [1, 1, 0])]
    seen, later = ({"p_0": rows(), "p_1": rows()} for _ in range(2))
    action, done = {a: np.ones(batch) for a in seen}, {a: np.zeros(batch) for a in seen}
    reward = {a: draw.normal(size=batch) for a in seen}
    states, following = (
        {a: {"observation": x, "action_mask": mask} for a, x in part.items()}
        for part, mask in zip((seen, later), legal, strict=True)
    )
    made = players(cls).make_batch((states, action, reward, following, done))
    assert made.obs_mask.tolist() == np.tile(legal[0], (1, 2)).astype(bool).tolist()
    assert made.next_mask.tolist() == np.tile(legal[1], (1, 2)).astype(bool).tolist()
    free = players(cls).make_batch((seen, action, reward, later, done))
    assert free.obs_mask is None


# --- absence ----------------------------------------------------------------------------------------------------------


@EVERY
def test_a_row_with_a_nan_is_an_absent_agent(cls: Any) -> None:
    seen = {"a_0": spaces.Box(-1, 1, (2,)), "b_0": spaces.Box(-1, 1, (1,))}
    made = team(cls, seen, {a: spaces.Discrete(2) for a in seen})
    rows = {"a_0": np.array([[0.5, 0.1], [np.nan, 0.2]]), "b_0": np.array([[0.3], [0.4]])}
    tree, _ = team_playing.observed(made, rows)
    assert tree["present"].tolist() == [[1, 1], [0, 1]]
    assert np.asarray(tree["agents"]["a_0"]).tolist() == [[0.5, 0.1], [0, 0]]
    assert all(np.isfinite(np.concatenate(values(made.get_action(rows, training=False)))))


# --- networks ---------------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("form", ["groups", "agents", "list", "modules"])
def test_policies_are_given_by_group_by_agent_or_in_order(cls: Any, form: str) -> None:
    own = dict(zip("abc", team(cls).actors.values(), strict=True))
    given: Any = {
        "groups": own, "agents": {f"{g}_0": n for g, n in own.items()}, "list": list(own.values()), "modules": own,
    }[form]  # fmt: skip
    if form == "modules":
        given = ModuleDict()
        for name, network in own.items():
            given[name] = network
    made = team(cls, actor_networks=given)
    assert all(made.actors[g] is own[g] for g in own)


MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "too few": (lambda n: list(n.values())[:2], ConfigError, r"actor_networks lists 2 networks for the groups \['a', "),
    "an unknown group": (lambda n: {"d": n["a"]}, ConfigError, r"actor_networks: unknown group 'd'"),
    "an unknown group of modules": (lambda n: torch.nn.ModuleDict({"aa": n["a"]}), ConfigError, r"unknown group 'aa'"),
    "no mapping": (lambda n: n["a"], TypeError, r"actor_networks must map groups to networks; got .*fix: "),
    "no network": (lambda n: {"a": torch.nn.Linear(2, 2)}, TypeError, r"All actor networks must be instances of Evolv"),
    "None for one": (lambda n: {"a": None}, TypeError, r"All actor networks must be .* 'a' is a NoneType"),
}


@EVERY
@pytest.mark.parametrize("name", MISTAKES)
def test_networks_that_do_not_fit_the_groups_are_named(cls: Any, name: str) -> None:
    make, kind, says = MISTAKES[name]
    own = dict(zip("abc", team(cls).actors.values(), strict=True))
    with pytest.raises(kind, match=says):
        team(cls, actor_networks=make(own))


def test_two_policies_for_agents_of_one_group_are_named() -> None:
    seen, done = {a: spaces.Box(-1, 1, (2,)) for a in ("x_0", "x_1")}, {a: spaces.Discrete(2) for a in ("x_0", "x_1")}
    one, other = (team(MADDPG, seen, done).actors["x"] for _ in range(2))
    with pytest.raises(ConfigError, match=r"two networks for the group 'x', whose agents share one\. fix: {'x': netw"):
        team(MADDPG, seen, done, actor_networks={"x_0": one, "x_1": other})
    assert team(MADDPG, seen, done, actor_networks={"x_0": one, "x_1": one}).actors["x"] is one


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
@pytest.mark.parametrize("activation", ["Sigmoid", "Softmax"])
def test_a_policy_of_box_actions_in_another_range_is_refused(
    cls: Any, activation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {**NET, "head_config": {"hidden_size": [8], "output_activation": activation}}
    says = (
        rf"the policy of the group 'b' has output_activation='{activation}', whose range is \(0\.0, 1\.0\); Box "
        r"actions of a team need \(-1\.0, 1\.0\)\. fix: output_activation='Tanh' or 'Softsign' in head_config\."
    )
    with pytest.raises(ConfigError, match=says):
        team(cls, net_config=config)
    policies = {"b": DeterministicActor(SEEN["b_0"], DONE["b_0"], **config)}
    with pytest.raises(ConfigError, match=says):
        team(cls, actor_networks=policies)
    made = team(cls)
    with pytest.raises(ConfigError, match=says):
        made.actors = {**made.actors, **policies}
    with monkeypatch.context() as earlier:  # versions that did not check
        earlier.setattr(deterministic, "check_range", lambda *_: None)
        team(cls, net_config=config).save_checkpoint(tmp_path / "team.pt")
    with pytest.raises(ConfigError, match=says):
        cls.load(tmp_path / "team.pt")


@pytest.mark.parametrize("cls", [MADDPG, MATD3])
def test_other_policies_may_have_any_output_activation(cls: Any) -> None:
    for activation, agents in (("Sigmoid", ("a_0", "c_0")), ("Softsign", ("a_0", "b_0"))):
        config = {**NET, "head_config": {"hidden_size": [8], "output_activation": activation}}
        made = team(cls, {a: SEEN[a] for a in agents}, {a: DONE[a] for a in agents}, net_config=config)
        assert len(made.actors) == 2


@pytest.mark.parametrize("given", [{"a": 1}, [{}], 3])
def test_matd3_takes_two_mappings_of_critics(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"MATD3: critic_networks must be two mappings by group.*fix: "):
        team(MATD3, critic_networks=given)


# --- decisions of the environment -------------------------------------------------------------------------------------


def test_a_component_with_one_value_is_stored_as_the_middle_of_the_raw_range() -> None:
    acted = {"a_0": spaces.Box(np.array([-1, 2], np.float32), np.array([3, 2], np.float32))}
    actions = MADDPG({"a_0": spaces.Discrete(2)}, acted, net_config=NET).actions
    stored = actions.stored(np.array([[2.0, 2.0], [np.nan, np.nan]], np.float32))
    np.testing.assert_array_equal(stored, [[0.5, 0.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(actions.environment(stored[:1]), [[2.0, 2.0]])


@EVERY
def test_the_environment_decides_for_some_environments(cls: Any) -> None:
    made = team(cls)
    free = made.get_action(ROWS, training=False)[0]
    said = {"a_0": {"env_defined_actions": [None, 1]}, "b_0": {"env_defined_actions": [[0.25, -0.5], None]}}
    found = made.get_action(ROWS, said, training=False)[0]
    assert found["a_0"].tolist() == [free["a_0"][0], 1]
    np.testing.assert_allclose(found["b_0"], [[0.25, -0.5], free["b_0"][1]])
    with pytest.raises(
        ShapeError, match=r"env_defined_actions of a_0 have shape \(3,\); expected \(2,\)\. fix: one ac"
    ):
        made.get_action(ROWS, {"a_0": {"env_defined_actions": [0, 1, 1]}})


@EVERY
def test_an_agent_of_which_the_vector_says_that_it_is_away_is_absent(cls: Any) -> None:
    made = team(cls)
    there = {"a_0": np.array([True, False]), "b_0": np.array([True, True]), "c_0": np.array([False, True])}
    tree, lanes = team_playing.observed(made, TeamObservations(ROWS, there))
    assert lanes == 2
    assert tree["present"].tolist() == [[1, 1, 0], [0, 1, 1]]


def test_a_memory_that_knows_its_spaces_keeps_the_lowest_choice_of_an_absent_agent() -> None:
    memory = MultiAgentReplayBuffer(4, FIELDS, list(SEEN), observation_spaces=SEEN)
    states = {"a_0": np.array([3]), "b_0": np.array([[1, 4]]), "c_0": np.array([[1, 1]])}
    actions = {"a_0": np.array([0]), "b_0": np.zeros((1, 2)), "c_0": np.array([[0, 0]])}
    rewards = {"a_0": np.array([np.nan]), "b_0": np.array([1.0]), "c_0": np.array([np.nan])}
    memory.save_to_memory(states, actions, rewards, states, {a: np.zeros(1) for a in SEEN}, is_vectorised=True)
    kept = memory.gather(np.zeros(1, np.int64))["obs"]
    assert kept["present"].tolist() == [[0, 1, 0]]
    assert [kept["agents"][a].flatten().tolist() for a in SEEN] == [[1], [1, 4], [0, 0]]
