"""What leaves with a policy acts as the agent does: plain PyTorch over 10,000 observations, and ONNX."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from typer.testing import CliRunner

import agilerl
from agilerl.algorithms import BC, CQL, DDPG, DQN, IQL, PPO, QRDQN, SAC, TD3, TD3BC, TQC, RainbowDQN
from agilerl.algorithms.base.observation_statistics import ALONE
from agilerl.cli import app
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.core import tree as trees
from agilerl.core.spaces import WordCounts, counts_of
from agilerl.errors import NotAvailableYetError, RunError
from agilerl.training.policy_files import write_policy
from agilerl.utils.utils import agent_from_policy
from agilerl.views.export import export_onnx, greedy_actions, plain_policy, sample_observations
from agilerl.views.standalone.policy import PolicyError, load
from agilerl.wrappers.agent import RSNorm

VECTOR = spaces.Box(np.array([-1, -np.inf, 0, -5], np.float32), np.array([1, np.inf, 300, 5], np.float32))
MATRIX = spaces.Box(-1, 1, (2, 3), np.float32)
BOX = spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([2.0, 50.0], np.float32))
SHAPED = spaces.Box(-2, 3, (2, 2), np.float32)
CHOICE = spaces.Discrete(4)
IMAGE = spaces.Box(0, 255, (3, 16, 16), np.uint8)
NET = {"latent_dim": 16, "encoder_config": {"hidden_size": [24, 20]}, "head_config": {"hidden_size": [16]}}
NORMED = {**NET, "encoder_config": {"hidden_size": [24], "layer_norm": True, "activation": "Mish"},
          "scale_observations": True}  # fmt: skip
CASES: dict[str, Callable[[], Any]] = {
    "DQN": lambda: DQN(VECTOR, CHOICE, net_config=NET, seed=1),
    "DQN LayerNorm scaled": lambda: DQN(VECTOR, CHOICE, net_config=NORMED, seed=1),
    "DQN matrix": lambda: DQN(MATRIX, CHOICE, net_config=NET, seed=1),
    "DQN Discrete": lambda: DQN(spaces.Discrete(7, start=3), CHOICE, net_config=NET, seed=1),
    "DQN MultiDiscrete": lambda: DQN(spaces.MultiDiscrete([3, 4, 2]), CHOICE, net_config=NET, seed=1),
    "DQN MultiBinary": lambda: DQN(spaces.MultiBinary(6), CHOICE, net_config=NET, seed=1),
    "Rainbow": lambda: RainbowDQN(VECTOR, CHOICE, net_config=NORMED, seed=1, num_atoms=11, v_min=-3, v_max=9),
    "Rainbow plain": lambda: RainbowDQN(
        VECTOR, CHOICE, net_config=NET, seed=1, distributional=False, dueling=False, noisy=False
    ),
    "DQN MultiDiscrete actions": lambda: DQN(
        VECTOR, spaces.MultiDiscrete([[2, 3], [2, 2]], start=[[0, 5], [1, -1]]), net_config=NET, seed=1
    ),
    "Rainbow from 3": lambda: RainbowDQN(VECTOR, spaces.Discrete(3, start=3), net_config=NET, seed=1, num_atoms=5),
    "QRDQN": lambda: QRDQN(VECTOR, spaces.MultiDiscrete([2, 3]), net_config=NORMED, seed=1, num_quantiles=7),
    "QRDQN image": lambda: QRDQN(IMAGE, CHOICE, seed=1, num_quantiles=3),
    "TQC": lambda: TQC(VECTOR, SHAPED, net_config=NORMED, seed=1),
    "DDPG": lambda: DDPG(VECTOR, BOX, net_config=NET, seed=1),
    "DDPG Sigmoid": lambda: DDPG(
        VECTOR, BOX, net_config={**NET, "head_config": {"hidden_size": [16], "output_activation": "Sigmoid"}}, seed=1
    ),
    "TD3 MultiDiscrete": lambda: TD3(spaces.MultiDiscrete([3, 4]), SHAPED, net_config=NET, seed=1),
    "SAC": lambda: SAC(VECTOR, SHAPED, net_config=NORMED, seed=1),
    "SAC discrete": lambda: SAC(VECTOR, CHOICE, net_config=NET, seed=1),
    "PPO": lambda: PPO(VECTOR, CHOICE, net_config=NET, seed=1),
    "PPO from 3": lambda: PPO(VECTOR, spaces.Discrete(3, start=3), net_config=NET, seed=1),
    "PPO clipped": lambda: PPO(VECTOR, BOX, net_config=NET, seed=1),
    "PPO squashed": lambda: PPO(VECTOR, SHAPED, net_config={**NET, "squash_output": True}, seed=1),
    "PPO shared, MultiDiscrete": lambda: PPO(
        VECTOR,
        spaces.MultiDiscrete([[2, 3], [2, 2]], start=[[0, 5], [1, -1]]),
        net_config=NET,
        share_encoders=True,
        seed=1,
    ),
    "PPO MultiBinary": lambda: PPO(VECTOR, spaces.MultiBinary([2, 2]), net_config=NORMED, seed=1),
    "PPO statistics": lambda: with_statistics(
        PPO(VECTOR, BOX, net_config=NET, normalize_observations=True, share_encoders=True, seed=1)
    ),
    "DQN image": lambda: DQN(IMAGE, CHOICE, net_config={"latent_dim": 16}, seed=1),
    "PPO image, channels last": lambda: PPO(
        spaces.Box(0, 255, (14, 13, 3), np.uint8),
        BOX,
        seed=1,
        net_config={
            "encoder_config": {
                "channel_size": [4, 6],
                "kernel_size": [3, [2, 3]],
                "stride_size": [2, 1],
                "padding_size": [1, 0],
                "activation": "Tanh",
            }
        },
    ),
    "SAC image of floats": lambda: SAC(spaces.Box(-1, 1, (2, 9, 9), np.float32), SHAPED, seed=1),
    "Rainbow image": lambda: RainbowDQN(IMAGE, CHOICE, seed=1, num_atoms=5, normalize_images=False),
    "IQL": lambda: IQL(VECTOR, SHAPED, net_config=NET, seed=1),
    "BC discrete": lambda: BC(VECTOR, CHOICE, net_config=NET, seed=1),
    "CQL": lambda: CQL(VECTOR, BOX, net_config=NET, seed=1, threshold=1.0),
    "TD3BC statistics": lambda: of_data(TD3BC(VECTOR, BOX, net_config=NET, normalize_observations=True, seed=1)),
    "DQN dense over a picture": lambda: DQN(
        spaces.Box(0, 255, (6, 5, 3), np.uint8), CHOICE, net_config={**NET, "scale_observations": True}, seed=1
    ),
    "DQN board": lambda: DQN(spaces.MultiDiscrete(np.full((5, 6), 3)), CHOICE, net_config=NET, seed=1),
    "PPO bounded picture": lambda: PPO(
        spaces.Box(np.zeros((4, 5, 2), np.float32), np.arange(1, 41, dtype=np.float32).reshape(4, 5, 2)),
        BOX,
        net_config=NORMED,
        seed=1,
    ),
    "DQN normalised": lambda: normalised(DQN(VECTOR, CHOICE, net_config=NET, seed=1)),
}


def normalised(agent: Any) -> RSNorm:
    wrapped = RSNorm(agent)
    wrapped.observe(np.random.default_rng(0).normal([1, 2, 100, 0], [1, 5, 40, 0.1], (500, 4)), count=True)
    return wrapped


def with_statistics(agent: PPO) -> PPO:
    statistics = agent.observation_statistics.running()
    rows = np.random.default_rng(0).normal([0, 2, 100, 0], [1, 5, 40, 0.1], (500, 4))
    statistics.add([{ALONE: rows}])
    agent.take_statistics(statistics)
    return agent


def of_data(agent: TD3BC) -> TD3BC:
    memory = ReplayBuffer(max_size=500)
    obs = np.random.default_rng(0).normal([0, 2, 100, 0], [1, 5, 40, 0.1], (500, 4)).astype(np.float32)
    memory.write(obs, np.zeros((500, 2), np.float32), np.zeros(500), obs, np.zeros(500, bool))
    agent.see_data(memory)
    return agent


def excite(agent: Any) -> Any:
    """Untrained heads are small: make actions depend on the observations."""
    with torch.no_grad():
        for name, p in agent.policy_module().named_parameters():
            if "linear" in name and "sigma" not in name:
                p.mul_(1.7).add_(0.05 * torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))))
    return agent


def saved(agent: Any, folder: Path) -> Path:
    write_policy(folder / "best", agent.policy_spec(), agent.policy_state())
    return folder / "best"


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if n % 2 == 0 else pytest.mark.slow) for n, case in enumerate(CASES)]
)
def test_the_plain_policy_acts_as_the_agent_over_ten_thousand_observations(case: str, tmp_path: Path) -> None:
    agent = excite(CASES[case]())
    policy = load(saved(agent, tmp_path))
    obs = sample_observations(agent.observation_space, 10_000, 5)
    expected = greedy_actions(agent, obs)
    got = np.concatenate([policy.act(obs[i : i + 500]).numpy() for i in range(0, len(obs), 500)])
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)
    assert len(np.unique(got.reshape(len(got), -1), axis=0)) > 1, "one action for everything proves nothing"
    single = policy.act(obs[0])
    assert single.shape == agent.action_space.shape
    torch.testing.assert_close(single, torch.from_numpy(expected)[0])


def test_parts_side_by_side_act_as_the_agent(tmp_path: Path) -> None:
    space = spaces.Dict(
        {
            "inner": spaces.Tuple([spaces.Discrete(3, start=1), spaces.MultiBinary(2)]),
            "picture": spaces.Box(0, 255, (6, 5, 3), np.uint8),
            "told": WordCounts(),
            "where": MATRIX,
        }
    )
    agent = excite(PPO(space, CHOICE, net_config=NORMED, normalize_observations=True, seed=1))
    obs = sample_observations(space, 500, 5)
    statistics = agent.observation_statistics.running()
    statistics.add([agent.encoder_inputs(obs)])
    agent.take_statistics(statistics)
    policy, expected = load(saved(agent, tmp_path)), greedy_actions(agent, obs)
    np.testing.assert_array_equal(policy.act(obs).numpy(), expected)
    assert len(np.unique(expected)) > 1
    texts = ["go to the red ball", "go to the blue box"] * 250
    np.testing.assert_array_equal(
        policy.act({**obs, "told": texts}).numpy(), greedy_actions(agent, {**obs, "told": counts_of(texts)})
    )
    one = {**trees.take(obs, 0), "told": texts[1]}
    assert policy.act(one) == policy.act({**obs, "told": [texts[1]] * 500})[0]
    with pytest.raises(PolicyError, match="no part 'picture'"):
        policy.act({name: part for name, part in obs.items() if name != "picture"})


def test_masks_of_legal_actions_hold(tmp_path: Path) -> None:
    agent = excite(CASES["DQN"]())
    policy = load(saved(agent, tmp_path))
    obs = sample_observations(VECTOR, 200, 1)
    mask = np.random.default_rng(0).random((200, 4)) < 0.5
    mask[:, 2] = True
    np.testing.assert_array_equal(policy.act(obs, mask).numpy(), agent.get_action(obs, 0.0, mask))
    assert policy.act(obs[0], mask[0]).shape == ()


def test_masks_of_several_components_hold(tmp_path: Path) -> None:
    agent = excite(CASES["DQN MultiDiscrete actions"]())
    policy = load(saved(agent, tmp_path))
    obs = sample_observations(VECTOR, 200, 1)
    mask = np.random.default_rng(0).random((200, 9)) < 0.6
    mask[:, [0, 2, 5, 7]] = True
    np.testing.assert_array_equal(policy.act(obs, mask).numpy(), agent.get_action(obs, 0.0, mask))


def test_the_loader_runs_where_this_package_is_not(tmp_path: Path) -> None:
    agent = excite(CASES["TD3 MultiDiscrete"]())
    best = saved(agent, tmp_path)
    obs = sample_observations(agent.observation_space, 50, 3)
    np.save(best / "obs.npy", obs)
    program = """
import sys
class No:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("agilerl", "gymnasium", "tensordict", "pydantic"):
            raise ImportError(name)
sys.meta_path.insert(0, No())
import numpy as np, policy
np.save("action.npy", policy.load(".").act(np.load("obs.npy")).numpy())
print(sorted(m for m in sys.modules if m.startswith("agilerl")))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=best, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    np.testing.assert_array_equal(np.load(best / "action.npy"), greedy_actions(agent, obs))


NESTED = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DQN(IMAGE, CHOICE, seed=1, net_config={"encoder_config": {"layer_norm": True}}), "without LayerNorm"),
        (lambda: DQN(VECTOR, CHOICE, seed=1, net_config={"simba": True}), "EvolvableSimBa"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_named(make: Any, message: str, tmp_path: Path) -> None:
    agent = make()
    with pytest.raises(PolicyError, match=message):
        load(saved(agent, tmp_path))
    with pytest.raises(NotAvailableYetError, match=f"DQN cannot be exported: .*{message}.*fix:"):
        plain_policy(agent)


DEEP = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (8, 7, 3), np.uint8),
        "a.b": spaces.Discrete(4, start=2),
        "vector": VECTOR,
        "inner": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Dict({"on": spaces.MultiBinary(2)})]),
    }
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: PPO(DEEP, CHOICE, net_config={"scale_observations": True}, seed=1),
        lambda: DQN(
            spaces.Tuple([spaces.Discrete(3), MATRIX]), CHOICE, net_config={"scale_observations": True}, seed=1
        ),
        lambda: SAC(NESTED, BOX, seed=1),
        lambda: DQN(DEEP, CHOICE, seed=1, net_config={"encoder_config": {"vector_space_mlp": True}}),
        lambda: DQN(NESTED, CHOICE, seed=1, net_config={"encoder_config": {"vector_space_mlp": True}}),
    ],
)
def test_the_plain_policy_reads_dict_and_tuple_observations_as_the_agent_does(make: Any, tmp_path: Path) -> None:
    agent = excite(make())
    policy = load(saved(agent, tmp_path))
    obs = sample_observations(agent.observation_space, 2_000, 5)
    agent.set_training_mode(False)
    expected, got = agent._greedy(obs), policy.act(obs).numpy()
    np.testing.assert_array_equal(got, expected)
    assert got.dtype == expected.dtype
    assert len(np.unique(got.reshape(len(got), -1), axis=0)) > 1, "one action for everything proves nothing"
    first = trees.take(obs, 0)
    np.testing.assert_allclose(policy.act(first).numpy(), got[0], rtol=1e-5)  # a batch of one rounds otherwise
    with pytest.raises(PolicyError, match=r"observations have no part|no part 0"):
        policy.act({} if isinstance(obs, dict) else ())


def test_constants_follow_the_device_and_keep_their_precision() -> None:
    policy = plain_policy(excite(CASES["SAC"]())).double()
    assert {b.dtype for b in policy.buffers()} == {torch.float64}
    assert plain_policy(CASES["SAC"]()).half().low.dtype == torch.float64


def test_a_policy_with_statistics_is_not_loaded_without_them(tmp_path: Path) -> None:
    agent = CASES["DQN normalised"]()
    with pytest.raises(RunError, match=r"a wrapper has normalised.*fix:"):
        agent_from_policy(agent.policy_spec(), agent.policy_state())


# -- ONNX ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case",
    [
        "DQN LayerNorm scaled",
        "DQN MultiDiscrete actions",
        "DQN Discrete",
        "DQN MultiDiscrete",
        "Rainbow",
        "QRDQN",
        "DDPG",
        "SAC",
        "SAC discrete",
        "DQN normalised",
        "DQN image",
    ],
)
def test_onnx_acts_as_the_agent(case: str, tmp_path: Path) -> None:
    agent = excite(CASES[case]())
    report = export_onnx(agent, tmp_path / "policy.onnx")
    assert report.observations == 10_000
    if report.different_actions is None:
        assert report.largest_difference < 1e-4 * 50  # of a Box as wide as 50, in float32
    else:  # values that are equal to rounding may rank the other way
        assert report.different_actions <= 5
    assert "largest difference over 10000 observations" in str(report)


@pytest.mark.parametrize("joined", [pytest.param(False, marks=pytest.mark.slow), True])
def test_onnx_has_an_input_for_each_part_of_an_observation(joined: bool, tmp_path: Path) -> None:
    config = {"encoder_config": {"vector_space_mlp": True}} if joined else None
    agent = excite(DQN(DEEP, CHOICE, seed=1, net_config=config))
    report = export_onnx(agent, tmp_path / "policy.onnx", rows=500)
    assert report.different_actions == 0
    import onnxruntime

    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"), providers=["CPUExecutionProvider"])
    assert {given.name for given in session.get_inputs()} == {
        "observation.camera", "observation.a.b", "observation.vector", "observation.inner.0", "observation.inner.1.on",
    }  # fmt: skip


def test_the_command_writes_onnx_and_prints_the_difference(tmp_path: Path) -> None:
    settings = {"training": {"evo_steps": 200, "eval_episodes": 2, "target_score": None}}
    run = agilerl.train("CartPole-v1", config=settings, population=2, steps=400, seed=1, out=tmp_path, verbose=False)
    assert run.path is not None
    assert {"policy.json", "policy.safetensors", "policy.py"} <= {p.name for p in (run.path / "best").iterdir()}
    policy = load(run.path / "best")
    obs = sample_observations(run.best.observation_space, 1000, 0)
    np.testing.assert_array_equal(policy.act(obs).numpy(), greedy_actions(run.best, obs))
    target = tmp_path / "out" / "p.onnx"
    done = CliRunner().invoke(app, ["export", str(run.path), "--onnx", "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert f"onnx  {target}" in done.output
    assert "largest difference over 10000 observations: " in done.output
    assert target.is_file()
    without = CliRunner().invoke(app, ["export", str(run.path), "--out", str(tmp_path / "same.onnx")])
    assert without.exit_code == 0, without.output
    assert (tmp_path / "same.onnx").is_file()


def test_missing_packages_are_named_with_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RunError, match=r'ONNX needs .*fix: pip install "agilerl\[onnx\]"'):
        export_onnx(CASES["DQN"](), tmp_path / "p.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_policy_json_is_json(tmp_path: Path) -> None:
    best = saved(CASES["DQN normalised"](), tmp_path)
    assert set(json.loads((best / "policy.json").read_text())["normaliser"]) == {"mean", "var", "epsilon"}
