"""Agents in wrappers, and subclasses with a `learn` of their own, learn from what plain agents learn from."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from agilerl.algorithms import DDPG, DQN, PPO, SAC, TD3, RainbowDQN
from agilerl.algorithms.base import on_policy
from agilerl.components.replay_buffer import MultiStepReplayBuffer, PrioritizedReplayBuffer, ReplayBuffer
from agilerl.engine.protocol import TransitionBatch
from agilerl.errors import AgileRLWarning
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.operators import HyperparameterConfig, RLParameter
from agilerl.hpo.tournament import TournamentSelection
from agilerl.rollouts.on_policy import collect_rollouts
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils.utils import make_vect_envs
from agilerl.wrappers.agent import AgentWrapper, RSNorm

NET = {"encoder_config": {"hidden_size": [8]}, "head_config": {"hidden_size": [8]}, "latent_dim": 8}
LSTM = {**NET, "encoder_config": {"hidden_state_size": 8, "min_hidden_state_size": 8}}
OBS = gym.spaces.Box(-1000, 1000, (2,), np.float32)
SPACES = {"Discrete": gym.spaces.Discrete(4), "MultiDiscrete": gym.spaces.MultiDiscrete([3, 2])}
LENGTH = 4
KINDS = ["plain", "wrapped", "normalised", "own learn", "normalised own learn"]


class Clock(gym.Env[np.ndarray, Any]):
    """Observation (time, episode) in episodes of LENGTH steps; the reward is the time after the step.

    Which actions are legal changes with the time; every action taken is kept with the mask of its moment.
    """

    observation_space = OBS
    taken: ClassVar[list[tuple[np.ndarray, np.ndarray]]] = []

    def __init__(self, space: str = "Discrete", masks: bool = False, truncates: bool = True, start: int = 0) -> None:
        self.action_space = SPACES[space]
        self.masks, self.truncates, self.time, self.episode = masks, truncates, 0, start

    def _seen(self) -> tuple[np.ndarray, dict[str, Any]]:
        return np.array([self.time, self.episode], np.float32), {"action_mask": self.mask()} if self.masks else {}

    def mask(self) -> np.ndarray:
        odd = self.time % 2
        if isinstance(self.action_space, gym.spaces.Discrete):
            return np.array([odd, 1 - odd, 0, odd], np.int8)
        return np.array([odd, 0, 1 - odd, odd, 1 - odd], np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.time, self.episode = 0, self.episode + 1
        return self._seen()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        Clock.taken.append((np.asarray(action).copy(), self.mask()))
        self.time += 1
        obs, info = self._seen()
        end = self.time == LENGTH
        return obs, float(self.time), end and not self.truncates, end and self.truncates, info


@pytest.fixture(autouse=True)
def forget() -> None:
    Clock.taken.clear()


def illegal() -> int:
    """How many of the actions taken were illegal."""

    def wrong(action: np.ndarray, mask: np.ndarray) -> bool:
        if not action.shape:
            return not mask[action]
        return not (mask[action[0]] and mask[3 + action[1]])

    return sum(wrong(action, mask) for action, mask in Clock.taken)


def environment(kind: str, lanes: int = 3, **options: Any) -> Any:
    """Lanes of this package, or a vector environment in one of Gymnasium's autoreset modes."""
    if kind == "lanes":
        return make_vect_envs(make_env=lambda: Clock(**options), num_envs=lanes)
    # The lanes begin at different times, so that they do not all reset in the same step.
    made = [lambda i=i: Late(i, **options) for i in range(lanes)]
    return SyncVectorEnv(made, autoreset_mode=AutoresetMode[kind])


class Late(Clock):
    """As `Clock`; the first episode is shorter by `late` steps."""

    def __init__(self, late: int, **options: Any) -> None:
        super().__init__(start=100 * late, **options)
        self.late = late

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset()
        self.time, self.late = self.late, 0
        return self._seen()


def member(kind: str, cls: Any, space: gym.Space[Any], **options: Any) -> Any:
    """One agent of `cls`, as it is, in a wrapper, or with a `learn` that only calls its parent's."""
    if kind.endswith("own learn"):

        class Own(cls):  # type: ignore[misc]
            def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> Any:
                return super().learn(experiences, *args, **kwargs)

        cls = Own
    agent = cls(OBS, space, **{"net_config": NET, "batch_size": 8, "seed": 1, **options})
    return {"wrapped": AgentWrapper, "normalised": RSNorm}.get(kind.split()[0], lambda a: a)(agent)


# --- rollouts

Learned = list[dict[str, Any]]


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> Learned:
    """What every rollout was learned from: fields of its valid rows, returns, and log probabilities as of now."""
    found: Learned = []
    original = on_policy.make_rollout

    def spy(learner: Any, group: int, members: Any, buffer: Any, like: Any) -> Any:
        rollout = original(learner, group, members, buffer, like)
        valid = buffer.stored("valid")
        rows = {k: v[: len(buffer)][valid] for k, v in buffer.fields.items() if isinstance(v, np.ndarray)}
        rows["hidden"] = {k: v[: len(buffer)][valid] for k, v in buffer.fields.get("hidden", {}).items()}
        rows["return"] = rollout.numbers[0, :, 3].numpy().reshape(valid.shape)[valid]
        agent = members[0]
        state = {k: torch.from_numpy(np.moveaxis(v, 0, 1)).contiguous() for k, v in rows["hidden"].items()}
        raw = agent._run(rows["obs"], state or None)[0]
        legal = torch.from_numpy(rows["legal"]) if "legal" in rows else None
        rows["now"] = agent.distribution.log_prob(agent._raw(raw), torch.from_numpy(rows["action"]), legal).numpy()
        final = np.array([[LENGTH, episode] for episode in rows["obs"][:, 1]], np.float32)
        rows["final value"] = agent.critic(torch.from_numpy(final)).detach().numpy()[:, 0] if not state else None
        found.append(rows)
        return rollout

    monkeypatch.setattr(on_policy, "make_rollout", spy)
    return found


def run_ppo(kind: str, env: Any, rollouts: int = 3, steps: int = 16, **options: Any) -> Any:
    agent = member(kind, PPO, env.single_action_space, learn_step=steps * env.num_envs, update_epochs=2, **options)
    total = rollouts * steps * env.num_envs
    train_on_policy(env, "clock", pop=[agent], max_steps=total, evo_steps=total, eval_steps=1, verbose=False, seed=1)
    env.close()
    return agent


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP", "SAME_STEP"])
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("kind", KINDS)
def test_rollouts_take_legal_actions_alone_and_learn_with_their_masks(
    kind: str, space: str, where: str, learned: Learned
) -> None:
    run_ppo(kind, environment(where, space=space, masks=True))
    assert len(Clock.taken) > 100
    assert illegal() == 0
    assert len(learned) == 3
    for rows in learned:
        odd = np.isin(np.arange(LENGTH) % 2, 1)
        assert rows["legal"].shape[1] == (4 if space == "Discrete" else 5)
        assert rows["legal"].sum() < rows["legal"].size * 0.7
        if kind in ("plain", "wrapped", "own learn"):
            assert (rows["legal"][:, 0] == odd[rows["obs"][:, 0].astype(int)]).all(), "the mask of its own moment"


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_policy_that_learns_is_the_one_that_acted(kind: str, recurrent: bool, where: str, learned: Learned) -> None:
    options = {"recurrent": True, "net_config": LSTM} if recurrent else {}
    run_ppo(kind, environment(where, masks=True), **options)
    assert len(learned) == 3
    for rows in learned:  # so that the ratio of the first update is 1
        np.testing.assert_allclose(rows["now"], rows["log_prob"], atol=2e-6)
        assert np.abs(rows["log_prob"]).max() > 0.1


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("truncates", [False, True], ids=["terminated", "truncated"])
@pytest.mark.parametrize("kind", ["plain", "wrapped", "own learn"])
def test_rollouts_hold_transitions_alone_and_bootstrap_truncations_from_the_final_observation(
    kind: str, truncates: bool, where: str, learned: Learned
) -> None:
    run_ppo(kind, environment(where, truncates=truncates), gamma=0.5, gae_lambda=0.0)
    assert len(learned) == 3
    ends = 0
    for rows in learned:
        time = rows["obs"][:, 0]
        assert set(time) <= set(range(LENGTH)), "a final observation is acted on in an autoreset row alone"
        np.testing.assert_array_equal(rows["reward"], time + 1)
        last = time == LENGTH - 1
        np.testing.assert_array_equal(rows["terminated"], last & (not truncates))
        np.testing.assert_array_equal(rows["truncated"], last & truncates)
        # With λ = 0 a return is r + γ·v(s'), and s' of an end by a time limit is the observation before the reset.
        beyond = 0.5 * rows["final value"][last] if truncates else 0
        np.testing.assert_allclose(rows["return"][last], LENGTH + beyond, atol=1e-5)
        ends += int(last.sum())
    assert ends > 20


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_agent_remembers_within_episodes_and_forgets_between_them(
    kind: str, where: str, learned: Learned
) -> None:
    run_ppo(kind, environment(where), recurrent=True, net_config=LSTM, share_encoders=False)
    assert len(learned) == 3
    for number, rows in enumerate(learned):
        if kind.startswith("normalised"):  # shifted by the mean, the first moments of episodes still lie lowest
            begins = np.isclose(rows["obs"][:, 0], rows["obs"][:, 0].min(), atol=1e-3)
        else:
            begins = rows["obs"][:, 0] == 0
        if number == 0 and where == "NEXT_STEP":
            continue  # lanes begin in the midst of the clock there, without a memory of what was before
        assert 0.1 < begins.mean() < 0.4
        for part in rows["hidden"].values():
            size = np.abs(part).max(axis=(1, 2))
            assert (size[begins] == 0).all()
            assert (size[~begins] > 1e-4).all()


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP"])
@pytest.mark.parametrize("recurrent", [False, True], ids=["feed-forward", "recurrent"])
def test_a_learn_that_only_calls_its_parent_s_teaches_what_the_buffer_teaches(recurrent: bool, where: str) -> None:
    options = {"recurrent": True, "net_config": LSTM} if recurrent else {}
    lanes = 3 if where == "lanes" else 1  # with autoreset rows the tuple is cut to the lane with the fewest transitions
    one, other = (run_ppo(kind, environment(where, lanes, masks=True), **options) for kind in ("wrapped", "own learn"))
    for mine, theirs in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP"])
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("kind", KINDS)
def test_collect_rollouts_takes_legal_actions_and_learn_reads_what_it_collected(
    kind: str, space: str, where: str, learned: Learned
) -> None:
    env = environment(where, space=space, masks=True)
    agent = member(kind, PPO, env.single_action_space, learn_step=48)
    kept: tuple[Any, ...] = ()
    for _ in range(2):
        _, *kept = collect_rollouts(agent, env, 16, *kept)  # type: ignore[assignment]
        assert isinstance(agent.learn(), float)
    env.close()
    assert len(Clock.taken) >= 72
    assert illegal() == 0
    for rows in learned:
        np.testing.assert_allclose(rows["now"], rows["log_prob"], atol=2e-6)
        assert rows["legal"].sum() < rows["legal"].size * 0.7


def test_schedules_of_a_run_reach_agents_that_train_alone() -> None:
    seen: list[float] = []

    class Reads(PPO):
        def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> float:
            seen.append(self.update_hyperparameters()["lr"])
            return super().learn(experiences)

    env = environment("lanes")
    agent = Reads(OBS, env.single_action_space, net_config=NET, learn_step=48, lr=1e-3, lr_schedule="linear")
    train_on_policy(env, "clock", pop=[agent], max_steps=192, evo_steps=48, eval_steps=1, verbose=False, seed=1)
    env.close()
    assert seen == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])


def test_a_mapping_of_experiences_may_hold_the_masks_of_a_hand_written_loop(learned: Learned) -> None:
    agent, rng = member("plain", PPO, SPACES["Discrete"]), np.random.default_rng(0)
    legal = [np.array([[True, False, False, True], [False, True, True, False]])] * 6
    obs = [rng.normal(size=(2, 2)).astype(np.float32) for _ in range(6)]
    chosen = [agent.get_action(o, action_mask=m) for o, m in zip(obs, legal, strict=True)]
    names = ("observations", "actions", "log_probs", "rewards", "dones", "values", "next_obs", "next_done")
    zeros = [np.zeros(2)] * 6
    entries = (obs, [c[0] for c in chosen], [c[1] for c in chosen], zeros, zeros, [c[3] for c in chosen], obs[0])
    given = dict(zip(names, (*entries, np.zeros(2)), strict=True))
    agent.learn({**given, "action_masks": legal})
    np.testing.assert_allclose(learned[0]["now"], learned[0]["log_prob"], atol=1e-6)
    agent.learn(given)
    assert np.abs(learned[1]["now"] - learned[1]["log_prob"]).max() > 0.3, "as if all actions had been legal"
    with pytest.raises(ValueError, match="got 5 entries in action_masks for 6 observations"):
        agent.learn({**given, "action_masks": legal[:5]})


def test_a_learn_that_reads_the_lists_itself_meets_no_autoreset_row() -> None:
    seen: list[tuple[Any, ...]] = []

    class Reads(PPO):
        def learn(self, experiences: Any = None, *args: Any, **kwargs: Any) -> float:
            seen.append(experiences)
            return 0.0

    env = environment("NEXT_STEP", lanes=2)
    agent = Reads(OBS, env.single_action_space, net_config=NET, learn_step=2 * 12, seed=1)
    train_on_policy(env, "clock", pop=[agent], max_steps=24, evo_steps=24, eval_steps=1, verbose=False, seed=1)
    ((obs, actions, _, rewards, dones, _, next_obs, next_done, truncateds, finals),) = seen
    # Lane 0 has 4 steps and a reset, 4 and a reset, 2: ten transitions. Lane 1: 3 and a reset, 4 and a reset, 3: ten.
    assert [o[0, 0] for o in obs] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert [o[1, 0] for o in obs] == [1, 2, 3, 0, 1, 2, 3, 0, 1, 2]
    assert [r.tolist() for r in rewards] == [[o[0, 0] + 1, o[1, 0] + 1] for o in obs]
    assert [d.tolist() for d in dones] == [
        [False, False], [False, False], [False, False], [False, True], [True, False],
        [False, False], [False, False], [False, True], [True, False], [False, False],
    ]  # fmt: skip
    assert [t.tolist() for t in truncateds] == [d.tolist() for d in [*dones[1:], next_done]]
    assert (next_obs[:, 0].tolist(), next_done.tolist()) == ([2, 3], [False, False])
    assert [f[:, 0].tolist() for f in finals] == [r.tolist() for r in rewards]
    assert len(actions) == 10


# --- replay


def spied(cls: Any, found: list[TransitionBatch]) -> Any:
    """`cls`, which keeps the batches that it is updated with."""

    class Spied(cls):  # type: ignore[misc]
        def update(self, engine: Any, batch: TransitionBatch) -> Any:
            found.append(batch)
            return super().update(engine, batch)

    return Spied


def run_off_policy(agent: Any, env: Any, memory: Any, steps: int = 120, **options: Any) -> None:
    train_off_policy(env, "clock", pop=[agent], memory=memory, max_steps=steps, evo_steps=steps, eval_steps=1,
                     eps_start=0.5, verbose=False, seed=1, **options)  # fmt: skip
    env.close()


@pytest.mark.parametrize("cls", [DQN, RainbowDQN])
@pytest.mark.parametrize("space", list(SPACES))
@pytest.mark.parametrize("kind", KINDS)
def test_replay_is_filled_with_legal_actions_and_learned_from_with_legal_ones(kind: str, space: str, cls: Any) -> None:
    found: list[TransitionBatch] = []
    agent = member(kind, spied(cls, found), SPACES[space], learn_step=3)
    run_off_policy(agent, environment("lanes", space=space, masks=True), ReplayBuffer(500))
    assert len(Clock.taken) >= 120
    assert illegal() == 0
    assert found
    choices = 4 if space == "Discrete" else 6
    for batch in found:
        assert batch.next_mask is not None
        assert batch.next_mask.shape[-1] == choices
        assert 0 < batch.next_mask.float().mean() < 0.6


N_STEP: dict[str, Callable[[], tuple[Any, Any]]] = {
    "one n-step memory": lambda: (MultiStepReplayBuffer(500, n_step=3, gamma=0.5), None),
    "beside a memory": lambda: (ReplayBuffer(500), MultiStepReplayBuffer(500, n_step=3, gamma=0.5)),
}


@pytest.mark.parametrize("memories", list(N_STEP))
@pytest.mark.parametrize("cls", [DQN, RainbowDQN])
@pytest.mark.parametrize("kind", KINDS)
def test_n_step_transitions_are_bootstrapped_from_with_the_discount_of_n_steps(
    kind: str, cls: Any, memories: str
) -> None:
    found: list[TransitionBatch] = []
    memory, beside = N_STEP[memories]()
    agent = member(kind, spied(cls, found), SPACES["Discrete"], learn_step=3, gamma=0.5)
    run_off_policy(agent, environment("lanes", truncates=False), memory, n_step=True, n_step_memory=beside)
    assert found
    times: set[int] = set()
    for batch in found:
        discount, done = batch.discounts(torch.tensor(0.5)).flatten(), batch.done.flatten().bool()
        assert (discount[done] == 0).all()
        assert (discount[~done] == 0.125).all()
        # From time 0 on: 1 + 2/2 + 3/4; from time 1: 2 + 3/2 + 4/4, from 2: 3 + 4/2, from 3: 4, all to the end.
        assert set(batch.reward.flatten().tolist()) <= {2.75, 4.5, 5.0, 4.0}
        times |= set(batch.reward.flatten().tolist())
    assert len(times) == 4


@pytest.mark.parametrize("with_n_step", [False, True], ids=["one step", "n steps"])
@pytest.mark.parametrize("cls", [DQN, RainbowDQN])
@pytest.mark.parametrize("kind", KINDS)
def test_prioritised_rows_count_by_their_weights_and_get_new_priorities(kind: str, cls: Any, with_n_step: bool) -> None:
    found: list[TransitionBatch] = []
    agent = member(kind, spied(cls, found), SPACES["Discrete"], learn_step=3)
    memory = PrioritizedReplayBuffer(500, alpha=1.0)
    beside = MultiStepReplayBuffer(500, n_step=3, gamma=0.99) if with_n_step else None
    run_off_policy(agent, environment("lanes"), memory, per=True, n_step=with_n_step, n_step_memory=beside)
    weights = torch.cat([batch.weight.flatten() for batch in found]) * 8
    assert (weights <= 1 + 1e-6).all()
    assert weights.min() < 0.7, "1 everywhere if importance were ignored"
    scaled = memory.state()["priorities"]["scaled"]
    assert len(scaled) == 120
    assert len(np.unique(scaled.numpy())) > 20


CONTINUOUS = gym.spaces.Box(-1, 1, (2,), np.float32)
ALL = [(DQN, SPACES["Discrete"]), (RainbowDQN, SPACES["Discrete"]), (DDPG, CONTINUOUS), (TD3, CONTINUOUS),
       (SAC, CONTINUOUS), (SAC, SPACES["Discrete"])]  # fmt: skip
NAMES = [f"{cls.__name__} {type(space).__name__}" for cls, space in ALL]


def sample(space: gym.Space[Any], count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    discrete = isinstance(space, gym.spaces.Discrete)
    return {
        "obs": torch.randn(count, 2, generator=g),
        "action": torch.randint(0, 4, (count, 1), generator=g) if discrete else torch.rand(count, 2, generator=g),
        "reward": torch.randn(count, 1, generator=g),
        "next_obs": torch.randn(count, 2, generator=g),
        "done": torch.tensor([0.0, 1.0] * (count // 2))[:, None],
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cls", "space"), ALL, ids=NAMES)
def test_a_hand_written_loop_learns_with_the_stored_discount_and_weights(cls: Any, space: Any, kind: str) -> None:
    found: list[TransitionBatch] = []
    agent = member(kind, spied(cls, found), space, gamma=0.5)
    batch = sample(space, 8)
    batch["discount"] = 0.125 * (1 - batch["done"])
    batch["weights"] = torch.linspace(0.25, 1, 8)[:, None]
    batch["idxs"] = torch.arange(8)
    agent.learn(batch, per=True)
    (seen,) = found
    assert seen.discounts(torch.tensor(0.5)).flatten().tolist() == [0.125, 0.0] * 4
    torch.testing.assert_close(seen.weight.flatten(), torch.linspace(0.25, 1, 8) / 8)


@pytest.mark.parametrize(("cls", "space"), ALL, ids=NAMES)
def test_priorities_are_asked_for_by_per_and_belong_to_the_rows(cls: Any, space: Any) -> None:
    one, other = (member("plain", cls, space, gamma=0.5) for _ in range(2))
    later = {**sample(space, 8, seed=1), "discount": torch.full((8, 1), 0.125)}
    rows = {**sample(space, 8), "weights": torch.linspace(0.25, 1, 8)[:, None], "idxs": torch.arange(8)}
    loss, idxs, priorities = one.learn(rows, n_experiences=later, per=True)
    assert idxs.tolist() == list(range(8))
    assert priorities.shape == (8,)
    assert (priorities > 0).all()
    found = other.learn({**later, "weights": rows["weights"], "idxs": rows["idxs"]}, per=True)
    if cls is not SAC and cls is not TD3 and cls is not RainbowDQN:  # those draw numbers for each batch
        assert loss == found[0], "the n-step rows are what is learned from, with the weights of the one-step rows"
        np.testing.assert_array_equal(priorities, found[2])


def test_n_step_rows_that_do_not_say_how_far_they_reach_are_refused() -> None:
    agent = member("plain", DQN, SPACES["Discrete"])
    rows = sample(SPACES["Discrete"], 8)
    with pytest.raises(ValueError, match=r"n_experiences without discount.*fix: sample a MultiStepReplayBuffer"):
        agent.learn(rows, n_experiences=rows)
    with pytest.raises(ValueError, match="got 8 experiences and 4 n_experiences"):
        agent.learn(rows, n_experiences=sample(SPACES["Discrete"], 4))


@pytest.mark.parametrize("truncates", [False, True], ids=["terminated", "truncated"])
@pytest.mark.parametrize("where", ["lanes", "NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.parametrize("kind", KINDS)
def test_replay_holds_transitions_alone_with_the_final_observation_of_truncations(
    kind: str, where: str, truncates: bool
) -> None:
    memory = ReplayBuffer(500)
    agent = member(kind, DQN, SPACES["Discrete"], learn_step=3)
    run_off_policy(agent, environment(where, truncates=truncates), memory)
    rows = {k: v.numpy() for k, v in memory.gather(np.arange(len(memory))).items()}
    time, after = rows["obs"][:, 0], rows["next_obs"][:, 0]
    assert set(time) == set(range(LENGTH))
    np.testing.assert_array_equal(after, time + 1)
    np.testing.assert_array_equal(rows["next_obs"][:, 1], rows["obs"][:, 1])
    np.testing.assert_array_equal(rows["reward"], time + 1)
    np.testing.assert_array_equal(rows["done"], (after == LENGTH) & (not truncates))
    assert (after == LENGTH).sum() > 20


def test_a_learn_that_takes_no_priorities_is_refused_before_anything_is_stepped() -> None:
    class Own(DQN):
        def learn(self, experiences: Any) -> Any:  # type: ignore[override]
            return super().learn(experiences)

    for wrap in (lambda a: a, RSNorm):
        env = environment("lanes")
        agent = wrap(Own(OBS, SPACES["Discrete"], net_config=NET))
        with pytest.raises(ValueError, match=r"Own.learn takes no argument 'per'.*fix: learn\(experiences, n_experi"):
            run_off_policy(agent, env, PrioritizedReplayBuffer(500), per=True)
        env.close()
    assert len(Clock.taken) == 0


class Drawer:
    """A memory that subclasses nothing."""

    def __init__(self) -> None:
        self.rows: list[tuple[np.ndarray, ...]] = []

    def save_to_memory(self, *fields: Any, is_vectorised: bool = False) -> None:
        assert is_vectorised
        self.rows += list(zip(*fields, strict=True))

    def sample(self, count: int) -> tuple[np.ndarray, ...]:
        return tuple(np.stack(column) for column in zip(*self.rows[-count:], strict=True))

    def __len__(self) -> int:
        return len(self.rows)


def test_a_memory_that_subclasses_nothing_serves_agents_with_their_own_learn() -> None:
    found: list[TransitionBatch] = []
    memory = Drawer()
    run_off_policy(member("own learn", spied(DQN, found), SPACES["Discrete"]), environment("NEXT_STEP"), memory)
    assert len(memory) > 90
    assert all(row[2] == row[0][0] + 1 and row[3][0] == row[0][0] + 1 for row in memory.rows)
    assert found


@pytest.mark.parametrize("kind", ["plain", "own learn"])
def test_a_memory_without_what_training_calls_is_named_at_the_call(kind: str) -> None:
    class Shelf:
        counter = 0

        def __len__(self) -> int:
            return 0

    missing = {"plain": "write, sample_indices, gather", "own learn": "sample, save_to_memory"}[kind]
    agent = member(kind, DQN, SPACES["Discrete"])
    env = environment("lanes")
    with pytest.raises(ValueError, match=rf"the memory is a Shelf without {missing}\. fix: ReplayBuffer\(max_size="):
        run_off_policy(agent, env, Shelf())
    env.close()


@pytest.mark.parametrize("kind", ["plain", "normalised"])
@pytest.mark.parametrize("memories", list(N_STEP))
def test_a_gamma_that_n_step_memory_does_not_know_of_is_warned_of(kind: str, memories: str) -> None:
    def train(gamma: float, mutation: Any = None, **options: Any) -> list[str]:
        memory, beside = N_STEP[memories]()
        agent = member(kind, DQN, SPACES["Discrete"], gamma=gamma, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            more = {"mutation": mutation, "tournament": mutation and TournamentSelection(1, True, 1)}
            run_off_policy(agent, environment("lanes"), memory, 6, n_step=True, n_step_memory=beside, **more)
        said = [w for w in caught if "gamma" in str(w.message)]
        assert all(w.category is AgileRLWarning for w in said)
        return [str(w.message) for w in said]

    assert train(0.5) == []
    (said,) = train(0.9)
    assert said.startswith("agents have gamma=0.9, their n-step memory has gamma=0.5:")
    assert "fix: MultiStepReplayBuffer(..., gamma=0.9), or agents with gamma=0.5." in said
    mutable = HyperparameterConfig(gamma=RLParameter(0.9, 0.99))
    assert train(0.5, hp_config=mutable) == [], "nothing mutates"
    (said,) = train(0.5, Mutations(1, 0, 0, 0, 0, 0, rand_seed=1), hp_config=mutable)
    assert said.startswith("gamma is in hp_config, but n-step rewards are summed as they are stored, with the memory's")
