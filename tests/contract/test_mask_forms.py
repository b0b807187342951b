"""Masks of legal actions: every kind of action in every form, in every kind of environment."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from masked_envs import FORMS, KINDS, CountedTeam, Masks, make, takes_form

import agilerl
from agilerl.algorithms import CQN, DQN, IPPO, PPO
from agilerl.collect.offline import fill
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core.options import OfflineOptions
from agilerl.core.spaces import MaskAsFeature, mask_width
from agilerl.core.tree import map_leaves, take
from agilerl.data.dataset import read_dataset
from agilerl.envs.masks import ActionMasks
from agilerl.envs.observed_masks import follow_masks
from agilerl.envs.step import SyncLanes, as_lanes
from agilerl.errors import EnvError, ShapeError
from agilerl.networks.distributions import ActionDistribution
from agilerl.views.export import plain_policy
from agilerl.views.standalone.policy import LARGEST_INPUT

CELLS = [(kind, form) for kind, form in itertools.product(KINDS, FORMS) if takes_form(kind, form)]
MODES = {mode.name: mode for mode in AutoresetMode}


def lanes_of(place: str, kind: str, form: str, counter: list[Masks]) -> Any:
    one = partial(make, kind, form, counter)
    if place == "single":
        return follow_masks(as_lanes(one()))
    if place == "ours":
        return follow_masks(SyncLanes([one] * 2))
    return follow_masks(as_lanes(SyncVectorEnv([one] * 2, autoreset_mode=MODES[place])))


@pytest.mark.parametrize("place", ["single", "ours", *MODES])
@pytest.mark.parametrize(("kind", "form"), CELLS)
def test_lanes_hand_on_what_is_legal_in_what_they_show(place: str, kind: str, form: str) -> None:
    if form == "none" and place in MODES:
        pytest.skip("Gymnasium itself does not stack None beside arrays")
    counter: list[Masks] = []
    lanes = lanes_of(place, kind, form, counter)
    reader, space = ActionMasks(lanes.single_action_space), KINDS[kind]
    obs, info = lanes.reset(np.arange(lanes.num_lanes))
    assert isinstance(lanes.single_observation_space, spaces.Box)
    for _ in range(20):
        mask = reader.of(info, lanes.num_lanes)
        if mask is None:
            mask = np.ones((lanes.num_lanes, mask_width(space)), bool)
        np.testing.assert_array_equal(mask, obs.astype(bool))  # the environment shows its own mask
        batch = lanes.step(np.stack([sampled(space, row) for row in mask]))
        final = reader.final(batch.info, lanes.num_lanes)
        known = batch.mask if form != "method" else batch.mask & ~batch.truncated
        if final is not None:
            np.testing.assert_array_equal(final[known], batch.final_obs[known].astype(bool))
        obs, info = batch.obs, batch.info


def sampled(space: Any, mask: np.ndarray) -> Any:
    """The highest legal action."""
    parts = np.split(mask, np.cumsum(ActionMasks(space)._sizes)[:-1])
    values = np.array([np.flatnonzero(part)[-1] for part in parts])
    if isinstance(space, spaces.Discrete):
        return values[0] + space.start
    return values.reshape(space.shape) + getattr(space, "start", 0)


TRAINED = [
    *((algo, kind, form) for kind, form in CELLS for algo in ("DQN", "PPO") if form in ("components", "observation")),
    ("PPO", "multi_binary", "flags"), ("DQN", "multi_discrete", "method"), ("PPO", "discrete", "sometimes"),
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("algo", "kind", "form"), [cell for cell in TRAINED if cell[0] == "PPO" or not cell[1].startswith("multi_binary")]
)
def test_nothing_illegal_is_done_in_training_and_evaluation(algo: str, kind: str, form: str) -> None:
    counter: list[Masks] = []
    env = SyncVectorEnv([partial(make, kind, form, counter)] * 2)
    run = agilerl.train(env, algo, population=1, steps=120, evo_steps=60, out=None, verbose=False, seed=1)
    run.best.test(env)
    assert sum(one.steps for one in counter) > 150
    assert sum(one.illegal for one in counter) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(("algo", "kind"), [("IPPO", "multi_binary"), ("MADDPG", "multi_discrete")])
def test_teams_do_nothing_illegal(algo: str, kind: str) -> None:
    counter: list[Masks] = []
    env = CountedTeam(kind, "components", counter)
    agilerl.train(env, algo, population=1, steps=60, evo_steps=60, out=None, verbose=False, seed=1)
    assert sum(one.steps for one in counter) > 60
    assert sum(one.illegal for one in counter) == 0


# --- N8: four actions, 1 and 3 illegal, said by the observation alone ------------------------------------------------


class Four(gym.Env[Any, Any]):
    observation_space = spaces.Dict(observation=spaces.Box(0, 1, (2,)), action_mask=spaces.MultiBinary(4))
    action_space = spaces.Discrete(4)
    taken: list[int]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.seen(), {}

    def seen(self) -> dict[str, np.ndarray]:
        return {"observation": np.zeros(2, np.float32), "action_mask": np.array([1, 0, 1, 0], np.int8)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(int(action))
        self.t += 1
        return self.seen(), float(action), False, self.t >= 10, {}  # illegal actions are worth more


@pytest.mark.parametrize("algo", ["DQN", "PPO"])
def test_masks_in_observations_are_followed_where_illegal_actions_pay_more(algo: str) -> None:
    taken: list[int] = []

    class Counted(Four):
        pass

    Counted.taken = taken
    run = agilerl.train(Counted(), algo, population=1, steps=256, evo_steps=128, out=None, verbose=False, seed=1)
    assert len(taken) > 250
    assert set(taken) == {0, 2}
    assert run.best.observation_space == Four.observation_space["observation"]
    run.best.set_training_mode(False)
    action = run.best.get_action({"observation": np.zeros((3, 2), np.float32), "action_mask": [[0, 1, 0, 0]] * 3})
    assert np.asarray(action[0] if algo == "PPO" else action).tolist() == [1, 1, 1]


def test_a_learn_of_stored_observations_with_masks_bootstraps_over_legal_actions() -> None:
    agent = DQN(Four.observation_space, Four.action_space, seed=1)
    obs = {"observation": np.zeros((2, 2), np.float32), "action_mask": np.array([[1, 0, 1, 0], [0, 1, 1, 1]])}
    rows = {"action": np.array([0, 1]), "reward": np.zeros(2), "done": np.zeros(2)}
    batch = agent.make_batch({"obs": obs, "next_obs": obs, **rows})
    assert batch.next_mask is not None
    assert batch.next_mask.tolist() == [[True, False, True, False], [False, True, True, True]]
    assert batch.obs.shape == (2, 2)


def test_an_agent_that_reads_the_mask_as_a_feature_is_loaded_as_it_was(tmp_path: Any) -> None:
    old = DQN(MaskAsFeature(Four.observation_space.spaces), Four.action_space, seed=1)
    old.save_checkpoint(tmp_path / "old.pt")
    loaded = DQN.load(tmp_path / "old.pt")
    assert isinstance(loaded.observation_space, MaskAsFeature)
    obs = {"observation": np.ones((1, 2), np.float32), "action_mask": np.array([[1, 0, 1, 0]], np.int8)}
    torch.testing.assert_close(loaded.policy_output(obs), old.policy_output(obs))


# --- wrong forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "mask", "says"),
    [
        (spaces.Discrete(3), [1, 0], r"has 2 entries .*expected for Discrete\(3\): 3 entries"),
        (spaces.Discrete(3), [1, 2, 0], r"has the entry 2"),
        (spaces.Discrete(3), [1.0, np.nan, 0], r"has the entry nan"),
        (spaces.Discrete(3), [0, 0, 0], r"allows no action;"),
        (spaces.Discrete(3), "yes", r"is 'yes'"),
        (spaces.MultiDiscrete([2, 3]), ([1, 0, 1], [1, 1]), r"has 3 entries for component 0, which has 2 choices"),
        (spaces.MultiDiscrete([2, 3]), [1, 1, 0, 0, 0], r"allows no action for component 1"),
        (spaces.MultiBinary(3), [1, 0], r"expected .*3 entries \(1 = the bit may be 1\) or 6"),
        (spaces.MultiBinary(2), [0, 0, 1, 1], r"allows no action for component 0"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": [1, 0]}, r"has the part 'b', which the action does not have"),
    ],
)  # fmt: skip
def test_a_wrong_mask_is_named(space: Any, mask: Any, says: str) -> None:
    with pytest.raises(EnvError, match=rf"^E, lane 0: action_mask {says}|^E, lane 0: .*{says}.*1 = legal and 0 = not"):
        ActionMasks(space, "E").one(mask)


def test_hybrid_masks_are_read_part_by_part() -> None:
    space = spaces.Dict(a=spaces.Discrete(2), b=spaces.Box(0, 1), c=spaces.MultiBinary(2))
    reader = ActionMasks(space)
    assert reader.width == 6
    assert reader.one({"a": [0, 1], "c": [1, 0]}).tolist() == [False, True, True, True, True, False]
    assert reader.one({"a": None}).all()
    stacked = {"a": np.array([[1, 0], [0, 1]]), "_a": np.array([True, True]), "c": np.ones((2, 4), bool)}
    assert reader.of({"action_mask": stacked}, 2)[:, :2].tolist() == [[True, False], [False, True]]


def test_bits_of_which_one_value_is_legal_have_that_value_for_certain() -> None:
    kind = ActionDistribution("bernoulli", (3,))
    raw, mask = torch.tensor([[5.0, -5.0, 0.0]]), torch.tensor([[1, 0, 0, 1, 1, 1]])
    action = kind.sample(raw, torch.tensor([[0.0, 0.999, 0.2]]), mask)
    assert action.tolist() == [[0, 1, 1]]
    assert kind.mode(raw, mask).tolist() == [[0, 1, 0]]
    assert float(kind.log_prob(raw, action, mask)) == pytest.approx(np.log(0.5))  # of the free bit alone
    assert float(kind.entropy(raw, mask)) == pytest.approx(np.log(2))


def test_ppo_takes_one_entry_a_bit_and_two() -> None:
    agent = PPO(spaces.Box(0, 1, (2,)), spaces.MultiBinary(3), seed=1)
    obs = np.zeros((40, 2), np.float32)
    assert not agent.get_action(obs, action_mask=[1, 0, 1])[0][:, 1].any()
    action = agent.get_action(obs, action_mask=[1, 0, 0, 1, 1, 1])[0]
    assert not action[:, 0].any()
    assert action[:, 1].all()
    with pytest.raises(ShapeError, match=r"PPO\.get_action, row 0: action_mask has 4 entries"):
        agent.get_action(obs, action_mask=[1, 0, 0, 1])


# --- policies that stand alone, and the conservative penalty ----------------------------------------------------------


def test_the_policy_that_stands_alone_follows_masks_as_the_agent_does() -> None:
    agent = PPO(spaces.Box(0, 1, (2,)), spaces.MultiBinary(3), seed=1)
    agent.set_training_mode(False)
    policy, obs = plain_policy(agent), np.zeros((2, 2), np.float32)
    for mask in ([[1, 0, 1]] * 2, [[1, 0, 0, 1, 1, 1]] * 2, [[0, 1, 1, 0, 0, 1]] * 2):
        assert policy.act(obs, mask).tolist() == agent.get_action(obs, action_mask=mask)[0].tolist()


def test_the_policy_that_stands_alone_takes_observations_with_their_masks() -> None:
    policy = plain_policy(DQN(Four.observation_space, Four.action_space, seed=1))
    seen = np.zeros((3, 2), np.float32)
    chosen = policy.act({"observation": seen, "action_mask": np.array([[0, 1, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]])})
    assert chosen.tolist() == [1, 3, 0]
    assert int(policy.act({"observation": seen[0], "action_mask": np.array([0, 0, 1, 0])})) == 2


def test_standardised_inputs_are_clamped_as_the_agents_are() -> None:
    agent = PPO(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(3), normalize_observations=True, seed=1)
    agent.set_training_mode(False)
    far = np.array([[1e3, -1e3]], np.float32)
    prepared = plain_policy(agent).prepare(far)
    assert prepared.tolist() == [[LARGEST_INPUT, -LARGEST_INPUT]]


def test_the_conservative_penalty_is_over_legal_actions() -> None:
    agent = CQN(spaces.Box(0, 1, (2,)), spaces.Discrete(3), seed=1)
    rows = {"obs": np.zeros((1, 2), np.float32), "next_obs": np.zeros((1, 2), np.float32), "done": np.ones(1)}
    rows |= {"action": np.zeros(1, np.int64), "reward": np.zeros(1)}
    with torch.no_grad():
        q = agent.policy_output(rows["obs"])[0].double()
    losses = {}
    for name, mask in (("one", [[1, 0, 0]]), ("two", [[1, 1, 0]]), ("all", [[1, 1, 1]])):
        found = agent.clone().learn({**rows, "obs_mask": np.array(mask)})
        losses[name] = float(found[0] if isinstance(found, tuple) else found)
    # Only the penalty, logsumexp over legal values minus the taken one, differs; of one legal action it is 0.
    for name, count in (("two", 2), ("all", 3)):
        penalty = float(q[:count].logsumexp(0) - q[0])
        assert losses[name] - losses["one"] == pytest.approx(penalty, rel=1e-4)


def test_the_masks_of_a_data_set_reach_the_conservative_penalty() -> None:
    agent = CQN(spaces.Box(0, 1, (2,)), spaces.Discrete(3), gamma=0.0, alpha=1.0, batch_size=1, seed=1)
    with torch.no_grad():  # values 1, 2 and 3 of every observation
        output = agent.actor.head_net.model.linear_output
        output.weight.zero_()
        output.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    rows = {"observations": np.zeros((2, 2), np.float32), "actions": np.zeros(2, np.int64), "rewards": np.ones(2)}
    masks = np.array([[1, 1, 0], [1, 1, 0]], bool)
    memory, options = ReplayBuffer(max_size=2), OfflineOptions(max_steps=1, evo_steps=1)
    fill(memory, read_dataset({**rows, "terminals": np.ones(2, bool), "action_masks": masks}), agent, options)
    # δ = 1 - 1 = 0, so the loss is log(e^1 + e^2) - 1 = log(1 + e); over all three it would be log(1 + e + e^2).
    assert agent.learn(memory.sample(1)) == pytest.approx(np.log(1 + np.e), abs=1e-5)


class WidePair:
    """Two agents that see two parts beside the mask, of which every second choice is legal, drawn anew in each step."""

    metadata: dict[str, Any] = {"name": "wide_pair_v0"}  # noqa: RUF012
    render_mode, possible_agents = None, ["a", "b"]
    illegal, done = 0, 0

    def observation_space(self, agent: str) -> gym.Space[Any]:
        parts = {"observation": spaces.Box(-1, 1, (3,)), "speed": spaces.Box(-1, 1, (1,))}
        return spaces.Dict({**parts, "action_mask": spaces.Box(0, 1, (4,), np.int8)})

    def action_space(self, agent: str) -> gym.Space[Any]:
        return spaces.Discrete(4)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.age, self.rng = list(self.possible_agents), 0, np.random.default_rng(seed)
        return self._see(), {}

    def _see(self) -> dict[str, Any]:
        self.legal = {a: np.roll([1, 0, 1, 0], self.rng.integers(2)).astype(np.int8) for a in self.possible_agents}
        rest = {"observation": np.zeros(3, np.float32), "speed": np.zeros(1, np.float32)}
        return {a: {**rest, "action_mask": mask} for a, mask in self.legal.items()}

    def step(self, actions: Any) -> tuple[Any, ...]:
        for agent, action in actions.items():
            WidePair.done += 1
            WidePair.illegal += not self.legal[agent][int(action)]
        self.age += 1
        present, over = self.agents, self.age >= 10
        self.agents = [] if over else self.agents
        flags = dict.fromkeys(present, False), dict.fromkeys(present, over)
        return self._see(), dict.fromkeys(present, 1.0), *flags, {}

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("algo", ["IPPO", "MADDPG"])
def test_teams_follow_a_mask_beside_several_other_parts(algo: str) -> None:
    WidePair.illegal, WidePair.done = 0, 0
    run = agilerl.train(WidePair, algo, steps=80, evo_steps=40, population=2, out=None, verbose=False)
    assert WidePair.done > 100
    assert WidePair.illegal == 0
    assert set(run.best.possible_observation_spaces["a"].spaces) == {"observation", "speed"}


# --- None inside nested masks ---------------------------------------------------------------------------------------

PAIR = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(2)))
LAST, NOTHING = np.array([0, 1], np.int8), spaces.Tuple((spaces.Box(-1, 1, (1,)), spaces.Box(-1, 1, (2,))))
NESTED: dict[str, tuple[Any, Any]] = {
    "a Tuple in a Dict": (spaces.Dict(a=PAIR), {"a": (None, LAST)}),
    "a list": (spaces.Dict(a=PAIR), {"a": [None, LAST]}),
    "an array of objects": (spaces.Dict(a=PAIR), {"a": np.array([None, LAST], object)}),
    "a Dict in a Tuple": (spaces.Tuple((spaces.Dict(a=PAIR), PAIR)), ({"a": (None, LAST)}, None)),
    "a Tuple in a Tuple": (spaces.Tuple((PAIR, PAIR)), ((None, LAST), (None, LAST))),
    "Boxes without masks": (spaces.Dict(a=PAIR, b=NOTHING), {"a": (None, LAST), "b": (None, None)}),
    "components": (spaces.Dict(a=spaces.MultiDiscrete([3, 2])), {"a": (None, LAST)}),
}


def lasts(space: Any, action: Any) -> list[int]:
    """The choice of the second of each pair that the masks of `NESTED` bind, of one action."""
    if isinstance(space, spaces.Dict):
        return lasts(space["a"], action["a"])
    if isinstance(space, spaces.Tuple) and space is not PAIR:
        return [n for part, one in zip(space.spaces, action, strict=True) for n in lasts(part, one)]
    return [int(action[1])]


@pytest.mark.parametrize("rows", [None, 1, 3])
@pytest.mark.parametrize("case", NESTED)
def test_none_inside_a_nested_mask_allows_all(case: str, rows: int | None) -> None:
    space, mask = NESTED[case]
    seen = spaces.Box(-1, 1, (2,))
    agent = PPO(seen, space, seed=1)
    team = IPPO({"x_0": seen, "y_0": seen}, {"x_0": space, "y_0": space}, seed=1)
    obs = np.zeros(2, np.float32) if rows is None else np.zeros((rows, 2), np.float32)
    bound = slice(0, 1) if case == "a Dict in a Tuple" else slice(None)

    def check(action: Any, has_rows: bool) -> None:
        for row in range(rows or 1):
            one = take(action, row) if has_rows else action
            assert set(lasts(space, one)[bound]) == {1}
            assert space.contains(map_leaves(lambda x: np.asarray(x)[()], one)), one

    for _ in range(4):
        check(agent.environment_action(agent.get_action(obs, action_mask=mask)[0]), True)
    check(agent.act(obs, mask), rows is not None)
    check(agent.act({"observation": obs, "action_mask": mask}), rows is not None)
    both = {"x_0": obs, "y_0": obs}
    check(team.act(both, {"x_0": mask})["x_0"], rows is not None)
    team.get_action(both, infos={"x_0": {"action_mask": mask}})


def test_a_mask_for_a_part_without_choices_is_named() -> None:
    space = spaces.Dict(a=PAIR, b=NOTHING)
    with pytest.raises(ShapeError, match=r"entries for the part 'b', a Tuple without choices.*fix: "):
        PPO(spaces.Box(-1, 1, (2,)), space).act(np.zeros(2, np.float32), {"b": (None, np.ones(2))})


def test_parts_of_a_tuple_are_not_named_by_keys_of_replay() -> None:
    space = gym.spaces.Tuple((gym.spaces.Discrete(3), gym.spaces.MultiDiscrete([2, 2])))
    agent = PPO(gym.spaces.Box(-1, 1, (2,)), space, seed=0)
    with pytest.raises(ShapeError, match=r"7 entries, or a tuple with one mask per part \(2 parts\)") as caught:
        agent.get_action(np.zeros((1, 2), np.float32), np.ones(5))
    assert "tuple_obs" not in str(caught.value)
