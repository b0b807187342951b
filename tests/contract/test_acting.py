"""One way to act for every algorithm: `act(obs, mask)` and `predict(obs, state)`, as the environment takes actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import available, find_algorithm
from agilerl.algorithms.base.wrapped import RSNorm
from agilerl.algorithms.teams.base import MultiAgentRLAlgorithm
from agilerl.errors import AlgorithmError, NotAvailableYetError, ShapeError

TEAMS = [n for n in available() if issubclass(find_algorithm(n), MultiAgentRLAlgorithm)]
TEXTS = [n for n in available() if getattr(find_algorithm(n), "learns_language", False)]
READERS = [n for n in available() if getattr(find_algorithm(n), "reads_texts", False)]
# Bandits read the contexts of all arms, and RecurrentPPO is PPO with a memory, which other tests ask.
OTHERS = ["NeuralTS", "NeuralUCB", "RecurrentPPO"]
SINGLE = [n for n in available() if n not in {*TEAMS, *TEXTS, *READERS, *OTHERS}]
CHOOSING = [n for n in SINGLE if "Discrete" in (find_algorithm(n).action_spaces or ["Discrete"])]
OBSERVATIONS = {
    "Box": spaces.Box(-1, 1, (3,)),
    "Discrete": spaces.Discrete(5),
    "Dict": spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)}),
    "Tuple": spaces.Tuple((spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2))),
    "image": spaces.Box(0, 255, (3, 16, 16), np.uint8),
}
ACTIONS = {
    "Discrete": spaces.Discrete(4),
    "start": spaces.Discrete(4, start=2),
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiBinary": spaces.MultiBinary(3),
    "Box": spaces.Box(np.float32([-2, 0]), np.float32([2, 5])),
}
SMALL = {"encoder_config": {"hidden_size": [8]}, "latent_dim": 8, "head_config": {"hidden_size": [8]}}


def made(algo: str, obs: str, actions: str, **more: Any) -> Any:
    """An agent, or a skip where the algorithm does not take the spaces."""
    if obs == "Box":
        more["net_config"] = SMALL
    try:
        return find_algorithm(algo)(OBSERVATIONS[obs], ACTIONS[actions], **more)
    except (AlgorithmError, NotAvailableYetError, ValueError) as error:
        pytest.skip(str(error))


def batched(space: spaces.Space[Any], rows: list[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {k: batched(s, [row[k] for row in rows]) for k, s in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(batched(s, [row[k] for row in rows]) for k, s in enumerate(space))
    return np.stack(rows)


@pytest.mark.parametrize("obs", OBSERVATIONS)
@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("algo", SINGLE)
def test_one_action_is_one_of_the_space_and_the_first_of_a_batch(algo: str, actions: str, obs: str) -> None:
    agent, space = made(algo, obs, actions), OBSERVATIONS[obs]
    space.seed(3)
    rows = [space.sample() for _ in range(3)]
    agent.set_training_mode(True)
    draws = torch.random.get_rng_state()
    one, many = agent.act(rows[0]), agent.act(batched(space, rows))
    assert ACTIONS[actions].contains(one) or ACTIONS[actions].contains(np.asarray(one)), one
    assert len(many) == 3
    for row, action in zip(rows, many, strict=True):
        np.testing.assert_allclose(agent.act(row), action, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(agent.predict(rows[0])[0], one)
    assert agent.predict(rows[0])[1] is None
    assert agent.training, "the mode is left as it is"
    assert torch.equal(draws, torch.random.get_rng_state()), "and nothing is drawn"
    np.testing.assert_allclose(agent._greedy(batched(space, rows)), many, rtol=1e-5)


@pytest.mark.parametrize("algo", SINGLE)
def test_masks_are_heeded_for_one_observation_and_for_a_batch(algo: str) -> None:
    agent = made(algo, "Box", "Discrete")
    for only in range(4):
        mask = np.eye(4, dtype=np.int8)[only]
        assert agent.act(np.zeros(3, np.float32), mask) == only
        assert agent.act(np.zeros((2, 3), np.float32), np.stack([mask, mask])).tolist() == [only, only]
        assert agent.act(np.zeros((2, 3), np.float32), mask[None].repeat(2, 0)).tolist() == [only, only]


@pytest.mark.parametrize("algo", CHOOSING)
def test_masks_beside_observations_are_heeded(algo: str) -> None:
    space = spaces.Dict({"observation": OBSERVATIONS["Box"], "action_mask": spaces.MultiBinary(4)})
    agent = find_algorithm(algo)(space, ACTIONS["Discrete"])
    seen = np.zeros(3, np.float32)
    for only in range(4):
        mask = np.eye(4, dtype=np.int8)[only]
        both = {"observation": np.stack([seen, seen]), "action_mask": np.stack([mask, mask])}
        assert agent.act({"observation": seen, "action_mask": mask}) == only
        assert agent.act(both).tolist() == [only, only]
        other = np.eye(4, dtype=np.int8)[3 - only]
        assert agent.act(both, other).tolist() == [3 - only] * 2, "a mask by hand counts"


def test_masks_come_in_every_form_of_an_action_with_components() -> None:
    agent = find_algorithm("PPO")(OBSERVATIONS["Box"], spaces.MultiDiscrete([2, 3]))
    seen = np.zeros((2, 3), np.float32)
    parts = (np.int8([0, 1]), np.int8([0, 0, 1]))
    assert agent.act(seen[0], parts).tolist() == [1, 2]
    assert agent.act(seen, np.concatenate(parts)).tolist() == [[1, 2]] * 2
    with pytest.raises(ShapeError, match=r"fix"):
        agent.act(seen[0], np.ones(4))


def test_a_memory_goes_from_call_to_call_and_leaves_the_agents_own_alone() -> None:
    agent: Any = find_algorithm("PPO")(OBSERVATIONS["Box"], ACTIONS["Box"], recurrent=True)
    seen = np.random.default_rng(0).uniform(-1, 1, (6, 3)).astype(np.float32)
    agent.set_training_mode(False)
    agent.begin_episodes()
    expected = [agent._greedy(row[None])[0] for row in seen]
    agent.begin_episodes()
    agent._greedy(seen[:1])
    kept, state, found = agent._playing, None, []
    for row in seen:
        action, state = agent.predict(row, state)
        found.append(action)
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))
    assert agent._playing is kept
    assert not np.allclose(agent.predict(seen[5])[0], expected[5]), "without the state it is another action"
    np.testing.assert_array_equal(agent.predict(seen[0], state, np.array([True]))[0], expected[0])
    with pytest.raises(AlgorithmError, match=r"PPO has a memory.*fix: action, state = agent.predict\(obs, state\)"):
        agent.act(seen[0])


def test_what_cannot_be_done_is_said() -> None:
    agent = made("DQN", "Box", "Discrete")
    with pytest.raises(ShapeError, match=r"got None for an observation.*fix: agent.act\(obs\)"):
        agent.predict(None)
    with pytest.raises(ShapeError, match=r"2 observations, and a state or episode_start of 3. fix"):
        agent.predict(np.zeros((2, 3)), episode_start=np.array([True, False, True]))
    recurrent: Any = find_algorithm("PPO")(OBSERVATIONS["Box"], ACTIONS["Box"], recurrent=True)
    state = recurrent.predict(np.zeros((3, 3), np.float32))[1]
    with pytest.raises(ShapeError, match=r"2 observations, and a state or episode_start of 3. fix"):
        recurrent.predict(np.zeros((2, 3), np.float32), state)
    for algo in (*TEXTS, *READERS):
        policy = object.__new__(find_algorithm(algo))
        object.__setattr__(policy, "algo", algo)
        with pytest.raises(NotAvailableYetError, match=f"{algo} writes texts and has no actions. fix:"):
            policy.predict("a text")
    assert {"GRPO", "ILQL"} <= {*TEXTS, *READERS}


def test_a_wrapper_acts_through_its_own_observations() -> None:
    agent = find_algorithm("DDPG")(OBSERVATIONS["Box"], ACTIONS["Box"])
    wrapped = RSNorm(agent)
    wrapped.observe(np.random.default_rng(0).normal(3, 2, (64, 3)).astype(np.float32), count=True)
    seen = np.float32([0.5, -0.2, 0.9])
    np.testing.assert_array_equal(wrapped.act(seen), agent.act(wrapped.observe(seen[None]))[0])
    assert not np.allclose(wrapped.act(seen), agent.act(seen))


AGENTS = ("one_0", "one_1")


@pytest.mark.parametrize(
    ("algo", "kind"),
    [(a, k) for a in TEAMS for k in ("Discrete", "Box") if k == "Discrete" or a not in ("QMIX", "VDN")],
)
def test_teams_act_by_agent_with_masks_and_board_observations(algo: str, kind: str) -> None:
    team: Any = find_algorithm(algo)([OBSERVATIONS["Box"]] * 2, [ACTIONS[kind]] * 2, agent_ids=list(AGENTS))
    team.set_training_mode(True)
    seen = {agent: np.full(3, 0.3, np.float32) for agent in AGENTS}
    one = team.act(seen)
    many = team.act({agent: np.stack([row, -row]) for agent, row in seen.items()})
    for agent in AGENTS:
        assert ACTIONS[kind].contains(one[agent]) or ACTIONS[kind].contains(np.asarray(one[agent]))
        np.testing.assert_allclose(many[agent][0], one[agent], rtol=1e-5)
        assert len(many[agent]) == 2
    assert team.training
    assert set(team.act({AGENTS[0]: seen[AGENTS[0]]})) == {AGENTS[0]}
    with pytest.raises(ShapeError, match="fix: a mapping from agents to observations"):
        team.act({"two_0": np.zeros(3, np.float32)})
    if kind == "Box":
        return
    for only in range(4):
        mask = np.eye(4, dtype=np.int8)[only]
        assert team.act(seen, {AGENTS[1]: mask})[AGENTS[1]] == only
        board = {agent: {"observation": row, "action_mask": mask} for agent, row in seen.items()}
        assert [int(team.act(board)[agent]) for agent in AGENTS] == [only, only]


@pytest.mark.parametrize("algo", ["IPPO", "MAPPO"])
def test_a_teams_memory_goes_from_call_to_call(algo: str) -> None:
    team: Any = find_algorithm(algo)(
        [OBSERVATIONS["Box"]] * 2, [ACTIONS["Box"]] * 2, agent_ids=list(AGENTS), recurrent=True
    )
    draws, state, found = np.random.default_rng(1).uniform(-1, 1, (5, 3)).astype(np.float32), None, []
    for row in draws:
        action, state = team.predict(dict.fromkeys(AGENTS, row), state)
        found.append(action)
    hidden = None
    for row, action in zip(draws, found, strict=True):
        expected, *_, hidden = team.get_action(dict.fromkeys(AGENTS, row[None]), training=False, hidden_state=hidden)
        for agent in AGENTS:
            np.testing.assert_allclose(action[agent], expected[agent][0], rtol=1e-5, atol=1e-6)


def test_the_matrix_is_not_empty_for_any_algorithm() -> None:
    taken: dict[str, int] = {}
    for algo in SINGLE:
        for actions in ACTIONS:
            try:
                made(algo, "Box", actions)
                taken[algo] = taken.get(algo, 0) + 1
            except pytest.skip.Exception:
                continue
    assert taken.keys() == set(SINGLE)
    assert taken["PPO"] == len(ACTIONS)
