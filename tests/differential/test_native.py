"""Whole updates in C against the update in torch, in float64; and equal bits where nothing may make a difference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor

from agilerl.algorithms import CQN, DQN
from agilerl.engine.learner import Learner, learn_alone
from agilerl.engine.protocol import TransitionBatch, UpdateResult
from agilerl.engine.recipes import TDRecipe
from agilerl.engine.rows.native import NativeUpdates
from agilerl.native import library as native
from agilerl.native.library import ACTIVATIONS, Library

OBS, ACTIONS = gym.spaces.Box(-1, 1, (8,)), gym.spaces.Discrete(4)
EQUAL, DIFFERENT = [(16, 20, 12)] * 3, [(16, 20, 12), (17, 24, 9), (33, 5, 16)]
FOUND = native.library()
pytestmark = pytest.mark.skipif(FOUND is None, reason="no kernels were built for this machine")


def members(widths: Any, dtype: torch.dtype = torch.float64, activation: str = "ReLU", **more: Any) -> list[DQN]:
    """Agents of these widths (latent, encoder, head) with learning rates of their own; CQNs if `alpha` is given.

    With a `stride` they read observations as images [2, 2, 2], by two convolutions.
    """
    norm, optimizer, kind = more.pop("norm", False), more.pop("optimizer", None), CQN if "alpha" in more else DQN
    stride = more.pop("stride", None)
    images = {"kernel_size": 2, "padding_size": [1, 0], "stride_size": [stride, 1], "min_channel_size": 1}
    agents = []
    for index, (latent, encoder, head) in enumerate(widths):
        parts = {"activation": activation, "layer_norm": norm}
        config = {
            "latent_dim": latent,
            "encoder_config": {"hidden_size": [encoder], **parts},
            "head_config": {"hidden_size": [head], **parts},
        }
        if stride:
            config["encoder_config"] = {"channel_size": [encoder // 2, 6], "activation": activation, **images}
        space = gym.spaces.Box(-1, 1, (2, 2, 2)) if stride else OBS
        agent = kind(space, ACTIONS, index=index, seed=index, lr=1e-3 * (index + 1), net_config=config, **more)
        for network in (agent.actor, agent.actor_target):
            network.to(dtype)
        if optimizer is not None:
            agent.optimizer.optimizer_cls, agent.optimizer.optimizer_kwargs = optimizer
        agent.reinit_optimizers()
        agents.append(agent)
    return agents


def batch(updates: int, count: int, rows: int, dtype: torch.dtype, *, masked: bool = False) -> TransitionBatch:
    """Random transitions [U, N, B, ...]; the last rows of the second member have weight 0."""
    draws = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draws, dtype=torch.float64).to(dtype)

    shape = updates, count, rows
    weight = torch.full(shape, 1 / rows, dtype=dtype)
    if count > 1:
        weight[:, 1, rows // 2 :] = 0
    legal = (torch.rand(*shape, 4, generator=draws) < 0.5) | (torch.arange(4) == 1) if masked else None
    return TransitionBatch(
        normal(*shape, 8),
        torch.randint(0, 4, shape, generator=draws),
        normal(*shape),
        normal(*shape, 8),
        torch.zeros(shape, dtype=dtype),
        weight,
        discount=0.99 * (torch.rand(*shape, generator=draws, dtype=torch.float64) < 0.9).to(dtype),
        next_mask=legal,
        obs_mask=legal,
    )


def rows_of(learner: Learner) -> list[Tensor]:
    (cohort,) = learner.groups[0].engine.cohorts
    return [x.clone() for x in (cohort.value, cohort.target, cohort.first, cohort.second, *cohort.step.values())]


def in_torch(agents: list[DQN], given: TransitionBatch, live: Any = None) -> tuple[list[Tensor], Tensor, Tensor]:
    learner = Learner(agents)
    assert len(learner.groups) == 1
    results = [learner.groups[0].learn(given.map(lambda x, u=u: x[u]), live) for u in range(len(given.obs))]
    losses, priorities = ([vars_of(r)[k] for r in results] for k in (0, 1))
    return rows_of(learner), torch.stack(losses), torch.stack(priorities)


def vars_of(result: UpdateResult) -> tuple[Tensor, Tensor]:
    assert result.priorities is not None
    return result.loss, result.priorities


def in_c(
    agents: list[DQN], given: TransitionBatch, live: Any = None, at_once: int | None = None, library: Any = None
) -> tuple[list[Tensor], Tensor, Tensor]:
    learner = Learner(agents)
    engine = learner.groups[0].engine
    updates = NativeUpdates(engine.cohorts, len(agents), (torch.float32, torch.float64))
    updates.library = library or updates.library
    recipe = agents[0].recipe()
    losses, priorities = [], []
    for start in range(0, len(given.obs), at_once or len(given.obs)):
        part = slice(start, start + (at_once or len(given.obs)))
        result = updates.run(recipe, given.map(lambda x, part=part: x[part]), engine.hp, live)
        assert result is not None
        for one in result:
            loss, priority = vars_of(one)
            losses.append(loss)
            priorities.append(priority)
    return rows_of(learner), torch.stack(losses), torch.stack(priorities)


def assert_close(one: Any, other: Any, tolerance: float) -> None:
    for a, b in zip([*one[0], *one[1:]], [*other[0], *other[1:]], strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def assert_equal(one: Any, other: Any) -> None:
    for a, b in zip([*one[0], *one[1:]], [*other[0], *other[1:]], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("widths", [EQUAL, DIFFERENT, EQUAL[:1]], ids=["equal", "different", "alone"])
@pytest.mark.parametrize(("masked", "double"), [(False, True), (True, True), (True, False)])
@pytest.mark.parametrize("norm", [False, True])
def test_sixty_updates_are_those_of_torch(widths: Any, masked: bool, double: bool, norm: bool) -> None:
    made = {"double": double, "norm": norm}
    given = batch(60, len(widths), 37, torch.float64, masked=masked)
    assert_close(in_c(members(widths, **made), given), in_torch(members(widths, **made), given), 1e-10)


@pytest.mark.parametrize("widths", [EQUAL, [(16, 9, 12), (7, 9, 20)]], ids=["equal", "different"])
@pytest.mark.parametrize("stride", [1, 2])
def test_updates_of_convolutions_are_those_of_torch_and_have_the_bits_of_every_width(widths: Any, stride: int) -> None:
    given = batch(40, len(widths), 37, torch.float64)
    made: dict[str, Any] = {"stride": stride, "activation": "GELU"}
    mine = in_c(members(widths, **made), given)
    assert_close(mine, in_torch(members(widths, **made), given), 1e-10)
    alone = in_c(members(widths, **made)[1:2], given.map(lambda x: x[:, 1:2]))
    assert torch.equal(alone[1][:, 0], mine[1][:, 1])
    assert FOUND is not None
    if FOUND.vector == 512:
        assert_equal(mine, in_c(members(widths, **made), given, library=Library(FOUND.path, 256)))


def test_rows_of_an_image_agent_are_its_modules() -> None:
    """Updates of images over rows, and with the agent's modules and torch optimiser."""
    draws, images = torch.Generator().manual_seed(3), gym.spaces.Box(0, 255, (2, 2, 2), "uint8")
    stored = [torch.randint(0, 256, (5, 2, 2, 2), generator=draws, dtype=torch.uint8) for _ in range(2)]
    numbers = [x.double() for x in (torch.ones(5), torch.zeros(5), torch.full((5,), 0.2))]
    transitions = TransitionBatch(stored[0], torch.arange(5) % 4, numbers[0], stored[1], *numbers[1:])
    config = {"encoder_config": {"channel_size": [4], "kernel_size": 2}}
    agents = [DQN(images, ACTIONS, seed=0, lr=0.01, net_config=config) for _ in "ab"]
    for agent, plain in zip(agents, (False, True), strict=True):
        agent.actor.double(), agent.actor_target.double()
        agent.reinit_optimizers()
        for _ in range(3):
            learn_alone(agent, transitions, plain)
    for one, other in zip(*(agent.actor.parameters() for agent in agents), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("widths", [EQUAL, DIFFERENT, [(1, 1, 1)]], ids=["equal", "different", "narrow"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 0.7])
def test_sixty_conservative_updates_are_those_of_torch(widths: Any, masked: bool, alpha: float) -> None:
    made = {"double": True, "alpha": alpha}
    given = batch(60, len(widths), 37, torch.float64, masked=masked)
    assert_close(in_c(members(widths, **made), given), in_torch(members(widths, **made), given), 1e-10)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("norm", [False, True])
def test_activations_are_those_of_torch(activation: str, norm: bool) -> None:
    given = batch(40, 3, 21, torch.float64)
    made = {"activation": activation, "norm": norm}
    assert_close(in_c(members(DIFFERENT, **made), given), in_torch(members(DIFFERENT, **made), given), 1e-10)


@pytest.mark.parametrize(
    "optimizer",
    [
        (torch.optim.Adam, {"betas": (0.8, 0.95), "eps": 1e-5}),
        (torch.optim.Adam, {"weight_decay": 0.1}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_optimisers_are_those_of_torch(optimizer: Any) -> None:
    given = batch(60, 3, 21, torch.float64)
    made = {"optimizer": optimizer}
    assert_close(in_c(members(EQUAL, **made), given), in_torch(members(EQUAL, **made), given), 1e-10)


def test_members_that_are_not_live_do_not_move() -> None:
    given, live = batch(20, 3, 21, torch.float64), [True, False, True]
    mine, theirs = in_c(members(EQUAL), given, live), in_torch(members(EQUAL), given, live)
    for one, other in zip(mine[0], theirs[0], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine[1][:, [0, 2]], theirs[1][:, [0, 2]], rtol=1e-10, atol=1e-10)
    fresh = rows_of(Learner(members(EQUAL)))
    assert all(torch.equal(after[1], before[1]) for after, before in zip(mine[0], fresh, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_members_together_are_members_alone_to_the_bit(activation: str, dtype: torch.dtype) -> None:
    given = batch(12, 3, 37, dtype)
    together = in_c(members(DIFFERENT, dtype, activation, norm=True), given)
    for index in range(3):
        agents = [members(DIFFERENT, dtype, activation, norm=True)[index]]
        alone = in_c(agents, given.map(lambda x, index=index: x[:, index : index + 1]))
        assert torch.equal(alone[1][:, 0], together[1][:, index])
        assert torch.equal(alone[2][:, 0], together[2][:, index])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_many_updates_in_one_call_are_one_by_one_to_the_bit(dtype: torch.dtype) -> None:
    given = batch(12, 3, 37, dtype, masked=True)
    assert_equal(in_c(members(DIFFERENT, dtype), given), in_c(members(DIFFERENT, dtype), given, at_once=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 64, 100])
@pytest.mark.parametrize("activation", ["ReLU", "GELU", "Mish", "Softplus"])
def test_vectors_of_every_width_give_the_same_bits(rows: int, activation: str, dtype: torch.dtype) -> None:
    assert FOUND is not None
    if FOUND.vector != 512:
        pytest.skip("this processor has one width of vectors")
    given = batch(6, 3, rows, dtype)
    made: Any = (DIFFERENT, dtype, activation)
    for more in ({}, {"alpha": 0.7}):
        narrow = in_c(members(*made, norm=True, **more), given, library=Library(FOUND.path, 256))
        assert_equal(in_c(members(*made, norm=True, **more), given), narrow)


def test_float32_is_as_near_to_float64_as_torch_is() -> None:
    given = batch(100, 3, 64, torch.float32)
    wide = given.map(lambda x: x.double() if x.is_floating_point() else x)
    agents = [members(EQUAL, torch.float32) for _ in range(3)]
    for agent in agents[0]:
        for network in (agent.actor, agent.actor_target):
            network.double()
        agent.reinit_optimizers()
    exact = in_torch(agents[0], wide)[0][0]
    errors = [(run(agents[1 + k], given)[0][0] - exact).abs() for k, run in enumerate((in_c, in_torch))]
    assert errors[0].mean() < 1.5 * errors[1].mean()
    assert errors[0].max() < 3 * errors[1].max()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_nan_stays_in_its_member_and_shows(activation: str) -> None:
    given = batch(3, 3, 21, torch.float32)
    agents = members(EQUAL, torch.float32, activation, norm=True)
    with torch.no_grad():
        next(agents[1].actor.parameters())[0, 0] = torch.nan
    spoiled, clean = in_c(agents, given), in_c(members(EQUAL, torch.float32, activation, norm=True), given)
    assert spoiled[1][:, 1].isnan().all()
    for row in (0, 2):
        assert torch.equal(spoiled[1][:, row], clean[1][:, row])
        assert all(torch.equal(a[row], b[row]) for a, b in zip(spoiled[0], clean[0], strict=True))


def test_what_c_has_no_kernel_for_is_left_to_torch() -> None:
    given = batch(2, 3, 21, torch.float64)
    recipe = TDRecipe("actor", "optimizer")
    rest: list[tuple[list[DQN], TransitionBatch, tuple[torch.dtype, ...]]] = [
        (members(EQUAL), given, (torch.float32,)),
        (members(EQUAL, optimizer=(torch.optim.SGD, {})), given, (torch.float64,)),
        (members(EQUAL), given.map(lambda x: x[0]), (torch.float64,)),
        (members(EQUAL), replace(given, action=given.action + 4), (torch.float64,)),
        (members(EQUAL), replace(given, action=given.action - 4), (torch.float64,)),
        (members(EQUAL), replace(given, action=given.action.unsqueeze(-1)), (torch.float64,)),
        (members(EQUAL), replace(given, next_mask=torch.ones(2, 3, 21, 3, dtype=torch.bool)), (torch.float64,)),
        (members(EQUAL), replace(given, next_obs=given.next_obs[..., :7]), (torch.float64,)),
    ]
    for agents, some, dtypes in rest:
        engine = Learner(agents).groups[0].engine
        assert NativeUpdates(engine.cohorts, 3, dtypes).run(recipe, some, engine.hp, None) is None


def test_the_variable_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGILERL_NATIVE", "yes")
    with pytest.raises(native.ConfigError, match=r"AGILERL_NATIVE='yes' is none of 0, 1, 256, 512\. fix: "):
        native.library()
    monkeypatch.setenv("AGILERL_NATIVE", "0")
    assert native.library() is None


def test_activations_have_the_numbers_of_the_header() -> None:
    header = (native.Path(native.__file__).parent / "kernels" / "population.h").read_text()
    names = header.partition("enum {")[2].partition("}")[0].replace("\n", " ").split(",")
    assert [name.strip().replace("_", "").lower() for name in names] == [name.lower() for name in ACTIVATIONS]
    assert f"POPULATION_ABI {native.ABI}\n" in header
    assert f"MAX_DEPTH {native.MAX_DEPTH}\n" in header
