"""Views live only inside a generation: outside of it an agent is an ordinary object, whatever the user does to it."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.engine.choose import choose
from agilerl.engine.learner import Learner
from agilerl.engine.protocol import TransitionBatch
from agilerl.errors import RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.training.train_off_policy import train_off_policy
from agilerl.utils.utils import make_vect_envs

OBS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = gym.spaces.Discrete(2)
NET = {"encoder_config": {"hidden_size": [16]}, "head_config": {"hidden_size": [12]}, "latent_dim": 16}
LEARNERS = ["fused", "sequential"]


def config() -> HyperparameterConfig:
    return HyperparameterConfig(lr=RLParameter(1e-4, 1e-2), batch_size=RLParameter(8, 64, dtype=int))


def population(size: int = 3, double: bool = False, **options: Any) -> list[DQN]:
    options = {"lr": 3e-3, "tau": 0.05, "learn_step": 2, "batch_size": 16, "net_config": NET, **options}
    agents: list[DQN] = DQN.population(size, OBS, ACTIONS, seed=3, hp_config=config(), **options)
    if double:
        for agent in agents:
            agent.actor.double()
            agent.actor_target.double()
    return agents


def train(
    agents: list[DQN],
    generations: int = 1,
    learner: str = "fused",
    evolve: bool = False,
    double: bool = False,
    **k: Any,
) -> tuple[list[DQN], list[list[float]]]:
    """A whole run on CartPole: 4 environments, 25 vector steps and 50 updates a generation."""
    env = make_vect_envs("CartPole-v1", num_envs=4)
    memory = ReplayBuffer(max_size=2000, dtype=torch.float64 if double else torch.float32, seed=1)
    begun = max(a.steps[-1] for a in agents)
    if evolve:
        k["tournament"] = TournamentSelection(2, True, len(agents), seed=5)
        k["mutation"] = Mutations(0.1, 0.3, 0.4, 0.2, 0.1, 0.3, rand_seed=5)
    try:
        return train_off_policy(
            env,
            "CartPole-v1",
            pop=agents,
            memory=memory,
            max_steps=begun + 100 * generations,
            evo_steps=100,
            eval_steps=30,
            verbose=False,
            seed=7,
            learner=learner,
            **k,
        )
    finally:
        env.close()


def batch(seed: int, size: int = 16, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(size, 4, generator=g, dtype=dtype),
        "action": torch.randint(0, 2, (size, 1), generator=g),
        "reward": torch.randn(size, 1, generator=g, dtype=dtype),
        "next_obs": torch.randn(size, 4, generator=g, dtype=dtype),
        "done": torch.rand(size, 1, generator=g) < 0.1,
    }


def tensors(agent: DQN) -> dict[str, Tensor]:
    """Every tensor that training changes, by name."""
    found = {f"actor.{k}": v for k, v in agent.actor.state_dict().items()}
    found |= {f"target.{k}": v for k, v in agent.actor_target.state_dict().items()}
    names = {p: n for n, p in agent.actor.named_parameters()}
    for parameter, state in agent.optimizer.optimizer.state.items():
        found |= {f"{key}.{names[parameter]}": value for key, value in state.items()}
    return found


def copies(agent: DQN) -> dict[str, Tensor]:
    return {k: v.detach().clone() for k, v in tensors(agent).items()}


def assert_same(got: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert got.keys() == expected.keys()
    for name, value in got.items():
        torch.testing.assert_close(
            value, expected[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


# --- storage


@pytest.mark.parametrize("write", [torch.save, pickle.dump])
@pytest.mark.parametrize("how", ["population", "alone"])
def test_a_saved_member_is_as_large_as_one_member(how: str, write: Any) -> None:
    sizes, counts = [], []
    for width in (16, 128):
        agents = population(8, net_config={**NET, "encoder_config": {"hidden_size": [width, width]}})
        if how == "population":
            agents, _ = train(agents)
        agents[0].learn(batch(0))
        file = io.BytesIO()
        write(agents[0].actor.state_dict() if write is torch.save else agents[0], file)
        sizes.append(file.tell())
        counts.append(sum(p.numel() for p in agents[0].actor.parameters()))
    # Network, or network + target + two moments, in float32. The rest of the file does not depend on the width.
    networks = 1 if write is torch.save else 4
    assert sizes[1] - sizes[0] == pytest.approx(4 * networks * (counts[1] - counts[0]), rel=0.05)


def test_no_two_members_share_storage_after_any_generation() -> None:
    agents = population(4)
    for _ in range(4):
        agents, _ = train(agents, generations=2, evolve=True)
        spans = [
            (t.untyped_storage().data_ptr(), t.untyped_storage().nbytes(), i, name)
            for i, agent in enumerate(agents)
            for name, t in tensors(agent).items()
        ]
        spans.sort()
        for (at, size, one, a), (following, _, other, b) in itertools.pairwise(spans):
            assert at + size <= following, f"{a} of member {one} and {b} of member {other} share storage"


def test_elite_that_the_user_holds_never_changes_afterwards() -> None:
    agents, _ = train(population(3))
    elite, agents = TournamentSelection(2, True, 3, seed=1).select(agents)
    member = agents[1]
    kept, before = elite, copies(elite)
    own, before_member = member.clone(), copies(member)
    trained, _ = train(agents, generations=2, evolve=True)
    trained[0].learn(batch(1))
    assert_same(tensors(kept), before)
    assert_same(tensors(own), before_member)
    assert any(not torch.equal(v, before[k]) for k, v in tensors(agents[0]).items()), "the run changed nothing"


def test_members_left_behind_by_selection_keep_their_last_weights() -> None:
    founders = population(3)
    first, _ = train(founders, generations=1)
    before = [copies(a) for a in first]
    train([a.clone() for a in first], generations=2, evolve=True)
    for agent, held in zip(first, before, strict=True):
        assert_same(tensors(agent), held)


# --- what users do between generations and between updates


def new_network(agent: DQN) -> None:
    other = DQN(OBS, ACTIONS, net_config=NET, seed=99).actor.to(next(agent.actor.parameters()).dtype)
    agent.actor, agent.actor_target = other, other.clone().requires_grad_(False)


def assign_weights(agent: DQN) -> None:
    agent.actor.load_state_dict({k: v * 1.5 for k, v in agent.actor.state_dict().items()}, assign=True)


def to_double(agent: DQN) -> None:
    agent.actor.double()
    agent.actor_target.double()


def load_moments(agent: DQN) -> None:
    state = agent.optimizer.state_dict()
    for entry in state["state"].values():
        entry["exp_avg"] = entry["exp_avg"] + 0.01
        entry["step"] = entry["step"] + 5
    state["param_groups"][0]["lr"] = 7e-3
    agent.optimizer.load_state_dict(state)


def own_step(agent: DQN) -> None:
    dtype = next(agent.actor.parameters()).dtype
    agent.optimizer.zero_grad(set_to_none=True)
    agent.actor(torch.ones(3, 4, dtype=dtype)).pow(2).sum().backward()
    agent.optimizer.step()
    agent.optimizer.zero_grad(set_to_none=True)


def scheduled(agent: DQN) -> None:
    agent.optimizer.param_groups[0]["lr"] = 9e-3


def other_rate(agent: DQN) -> None:
    agent.lr = 5e-3


def in_place(agent: DQN) -> None:
    with torch.no_grad():
        for parameter in agent.actor.parameters():
            parameter.mul_(0.9)


def other_betas(agent: DQN) -> None:
    agent.optimizer.param_groups[0]["betas"] = (0.5, 0.9)


CHANGES = [
    new_network, assign_weights, to_double, load_moments, own_step, scheduled, other_rate, in_place, other_betas,
]  # fmt: skip


def reference(agent: DQN) -> Callable[[TransitionBatch], None]:
    """Plain torch, going on from where the agent is: its own modules (copied) and a `torch.optim.Adam`."""
    net, target = copy.deepcopy(agent.actor), copy.deepcopy(agent.actor_target)
    optimizer = torch.optim.Adam(net.parameters(), lr=agent.lr)
    group = agent.optimizer.param_groups[0]
    optimizer.param_groups[0].update(lr=group["lr"], betas=group["betas"])
    for mine, theirs in zip(agent.actor.parameters(), net.parameters(), strict=True):
        if mine in agent.optimizer.optimizer.state:
            moments = agent.optimizer.optimizer.state[mine]
            optimizer.state[theirs] = {
                k: v.clone() if k == "step" else v.to(theirs.dtype).clone() for k, v in moments.items()
            }

    def update(b: TransitionBatch) -> None:
        with torch.no_grad():
            y = b.reward + agent.gamma * (1 - b.done) * target(b.next_obs).max(1).values
        loss = nn.functional.mse_loss(net(b.obs).gather(1, b.action[:, None]).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p, q in zip(net.parameters(), target.parameters(), strict=True):
                q.copy_(agent.tau * p + (1 - agent.tau) * q)

    update.tensors = lambda: {  # type: ignore[attr-defined]
        **{f"actor.{k}": v for k, v in net.state_dict().items()},
        **{f"target.{k}": v for k, v in target.state_dict().items()},
        **{f"{k}.{n}": v for n, p in net.named_parameters() for k, v in optimizer.state[p].items()},
    }
    return update


@pytest.mark.parametrize("plain", [False, True], ids=["rows", "modules"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_learn_honours_what_the_user_did_since_the_last_update(change: Callable[[DQN], None], plain: bool) -> None:
    (agent,) = population(1, double=change is not to_double)
    for i in range(5):
        agent.learn_batch(agent.make_batch(batch(i)), plain=plain)
    change(agent)
    if change is assign_weights:  # the optimiser follows: its moments stay with the parameters of the same name
        agent.follow_optimizers()
    goes_on = reference(agent)
    for i in range(5, 10):
        made = agent.make_batch(batch(i, dtype=torch.float64))
        agent.learn_batch(made, plain=plain)
        goes_on(made)
    assert_same(tensors(agent), goes_on.tensors(), 1e-12)  # type: ignore[attr-defined]


def test_a_hundred_updates_with_the_user_in_between_equal_plain_torch() -> None:
    (agent,) = population(1, double=True)
    goes_on = reference(agent)
    for i in range(100):
        if i and i % 10 == 0:
            change = CHANGES[(i // 10) % len(CHANGES)]
            before = copies(agent)
            change(agent)
            agent.follow_optimizers()
            assert (
                change is to_double
                or any(
                    tensors(agent).get(k) is None or not torch.equal(tensors(agent)[k], v) for k, v in before.items()
                )
                or change in (scheduled, other_rate, other_betas)
            ), f"{change.__name__} did nothing"
            goes_on = reference(agent)
        made = agent.make_batch(batch(i, dtype=torch.float64))
        agent.learn(batch(i, dtype=torch.float64))
        goes_on(made)
        assert_same(tensors(agent), goes_on.tensors(), 1e-12)  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["pickle", "deepcopy", "clone", "file", "load"])
def test_a_copy_goes_on_exactly_like_the_original(how: str, tmp_path: Path) -> None:
    agents, _ = train(population(2, double=True), generations=2, evolve=True, double=True)
    agent = agents[1]
    agent.learn(batch(0, dtype=torch.float64))
    agent.batch_size = np.int64(24)  # type: ignore[assignment]
    agent.extra = torch.arange(3.0)
    if how in ("file", "load"):
        agent.save_checkpoint(tmp_path / "deep" / "agent.pt")
    fresh = DQN(OBS, ACTIONS, hp_config=config(), seed=77)
    twin: DQN = {
        "pickle": lambda: pickle.loads(pickle.dumps(agent)),
        "deepcopy": lambda: copy.deepcopy(agent),
        "clone": agent.clone,
        "file": lambda: fresh.load_checkpoint(tmp_path / "deep" / "agent.pt") or fresh,
        "load": lambda: DQN.load(tmp_path / "deep" / "agent.pt"),
    }[how]()
    for step in range(3):
        assert_same(tensors(twin), tensors(agent))
        mine, theirs = tensors(agent), tensors(twin)
        assert not {t.data_ptr() for t in mine.values()} & {t.data_ptr() for t in theirs.values()}
        for name in ("lr", "batch_size", "gamma", "tau", "learn_step", "steps", "scores", "fitness", "index", "mut"):
            assert getattr(twin, name) == getattr(agent, name), name
        assert torch.equal(twin.extra, agent.extra)  # type: ignore[attr-defined]
        assert twin.hp_config.names() == agent.hp_config.names()
        assert twin.hp_config["batch_size"].dtype is int
        assert [p.requires_grad for p in twin.actor_target.parameters()] == [False] * len(list(twin.actor.parameters()))
        obs = np.random.default_rng(step).normal(size=(50, 4))
        assert (twin.get_action(obs, 0.5) == agent.get_action(obs, 0.5)).all(), "exploration streams differ"
        assert twin.learn(batch(step, dtype=torch.float64)) == agent.learn(batch(step, dtype=torch.float64))
    if how != "clone":
        agent.actor.double()
        train([twin], learner="fused", double=True)  # it can be adopted again


def test_load_needs_neither_hyperparameters_nor_architecture(tmp_path: Path) -> None:
    agent = DQN(
        gym.spaces.Discrete(5), gym.spaces.Discrete(3), hp_config=config(), net_config={"latent_dim": 24}, double=True,
        lr=0.01, index=6, seed=1,
    )  # fmt: skip
    Mutations(0, 1, 1, 0, 0, 0, rand_seed=1).mutation([agent])
    agent.save_checkpoint(tmp_path / "a.pt")
    twin = DQN.load(str(tmp_path / "a.pt"), device="cpu", accelerator=None)
    assert twin.actor.describe() == agent.actor.describe()
    assert (twin.observation_space, twin.action_space) == (agent.observation_space, agent.action_space)
    assert (twin.double, twin.lr, twin.index, twin.mut) == (True, 0.01, 6, agent.mut)
    assert twin.hp_config == agent.hp_config
    assert (twin.get_action(np.arange(5)) == agent.get_action(np.arange(5))).all()


def test_files_of_another_algorithm_are_refused_with_the_published_words(tmp_path: Path) -> None:
    class Other(DQN):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.critic = self.actor.clone()
            self.register_network_group(type(self.registry.groups[0])(self.critic))

    Other(OBS, ACTIONS).save_checkpoint(tmp_path / "other.pt")
    words = "Loaded registry does not match the algorithm's registry"
    for read in (DQN(OBS, ACTIONS).load_checkpoint, DQN.load):
        with pytest.raises(RunError, match=words) as caught:
            read(tmp_path / "other.pt")
        assert "fix: Other.load(path)" in str(caught.value)
        assert isinstance(caught.value, ValueError)


# --- the same, between generations


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_next_generation_honours_what_the_user_did(change: Callable[[DQN], None]) -> None:
    """Both learners adopt the changed population and end with the same weights; an unchanged run ends elsewhere."""
    results: dict[str, list[dict[str, Tensor]]] = {}
    double = change is not to_double
    for learner in (*LEARNERS, "unchanged"):
        agents, _ = train(population(2, double=double), learner="fused", double=double)
        if learner != "unchanged":
            change(agents[0])
        if change is to_double and learner != "unchanged":
            assert next(agents[1].actor.parameters()).dtype is torch.float32, "one member only"
        agents, _ = train(agents, learner="fused" if learner == "unchanged" else learner, double=True)
        results[learner] = [copies(a) for a in agents]
    first = {k: v.double() for k, v in results["fused"][0].items()}
    # The float32 member of `to_double` agrees to rounding only and may act differently.
    if change is to_double:
        assert {v.dtype for k, v in results["fused"][0].items() if not k.startswith("step")} == {torch.float64}
    else:
        for one, other in zip(results["fused"], results["sequential"], strict=True):
            assert_same(one, other, 1e-10)
    unchanged = results["unchanged"][0]
    assert any(k not in unchanged or not torch.equal(v, unchanged[k].double()) for k, v in first.items())


def test_a_hooked_member_trains_on_the_sequential_path_with_the_same_result() -> None:
    calls: list[int] = []
    ends = []
    for hooked in (False, True):
        agents, _ = train(population(2, double=True), double=True)
        if hooked:
            agents[0].actor.register_forward_hook(lambda *_: calls.append(1))
        notes: list[Any] = []
        agents, _ = train(agents, learner="auto", double=True, sinks=[Recorder(notes)])
        ends.append([copies(a) for a in agents])
        assert notes[0].learner == ("sequential" if hooked else "fused")
        if hooked:
            assert any("agent 0 does not stack" in note for note in notes[0].notes)
    assert len(calls) > 25, "one call per vector step at least"
    for one, other in zip(*ends, strict=True):
        assert_same(one, other, 1e-10)


def test_a_hook_between_two_updates_is_called_and_changes_nothing_else() -> None:
    (agent,) = population(1, double=True)
    twin = agent.clone()
    calls: list[int] = []
    for i in range(20):
        if i == 10:
            handle = agent.actor.register_forward_hook(lambda *_: calls.append(1))
        if i == 15:
            handle.remove()
        assert agent.learn(batch(i, dtype=torch.float64)) == pytest.approx(
            twin.learn(batch(i, dtype=torch.float64)), rel=1e-12
        )
    assert len(calls) == 5
    assert_same(tensors(agent), tensors(twin), 1e-12)


class Recorder:
    """A sink that keeps the plan and the records."""

    def __init__(self, plans: list[Any], records: list[Any] | None = None) -> None:
        self.plans, self.records = plans, records if records is not None else []

    def start(self, plan: Any, founders: Any) -> None:
        self.plans.append(plan)

    def progress(self, env_steps: int, seconds: float) -> None: ...

    def generation(self, record: Any) -> None:
        self.records.append(record)

    def message(self, text: str) -> None: ...

    def close(self) -> None: ...


# --- whole runs


def as_bytes(agents: list[DQN]) -> bytes:
    return b"".join(t.contiguous().numpy().tobytes() for a in agents for t in copies(a).values())


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_run_with_one_seed_gives_equal_bytes_twice(learner: str) -> None:
    ends = []
    for _ in range(2):
        agents, fitness = train(population(4), generations=4, learner=learner, evolve=True)
        ends.append((as_bytes(agents), fitness, [(a.index, a.mut, a.lr, a.batch_size, a.scores) for a in agents]))
    assert ends[0] == ends[1]
    assert {label for _, label, *_ in ends[0][2]} != {"None"}, "nothing mutated: change rand_seed"


def test_fused_and_sequential_runs_agree_with_evolution_on() -> None:
    ends = [train(population(4, double=True), 5, learner, evolve=True, double=True) for learner in LEARNERS]
    (one, fitness), (other, expected) = ends
    assert fitness == expected
    assert [(a.index, a.mut, a.actor.describe()) for a in one] == [(a.index, a.mut, a.actor.describe()) for a in other]
    # Rounding errors of 1e-16 grow over 250 updates and some refits; a wrong batch or moment would show as 1e-3.
    for mine, theirs in zip(one, other, strict=True):
        assert_same(copies(mine), copies(theirs), 1e-8)


def test_an_error_inside_a_generation_gives_the_members_their_tensors_back() -> None:
    class Fails(Recorder):
        def progress(self, env_steps: int, seconds: float) -> None:
            if env_steps > 50:
                raise KeyboardInterrupt("stop here")  # a sink's own errors do not end a run

    agents = population(3)
    before = [copies(a) for a in agents]
    with pytest.raises(KeyboardInterrupt, match="stop here"):
        train(agents, sinks=[Fails([])])
    for agent, held in zip(agents, before, strict=True):
        assert any(not torch.equal(v, held[k]) for k, v in tensors(agent).items() if k in held), "it had learned"
        for tensor in tensors(agent).values():
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert Learner(agents, choose(agents, "fused")).groups
    assert Learner(agents, choose(agents, "sequential")).groups
