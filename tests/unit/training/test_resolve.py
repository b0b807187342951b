"""Every algorithm on every kind of space by its defaults, default encoders by the size of images, and what is refused
before anything is written."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from small_envs import Episodes

import agilerl
from agilerl import errors
from agilerl.algorithms import LANGUAGE, available, find_algorithm, is_team
from agilerl.api import build_manifest
from agilerl.config import apply_overrides, load_manifest, manifest_from, preset_for
from agilerl.errors import AgileRLError, AlgorithmError, ConfigError, EnvError
from agilerl.modules.cnn import usual_layers
from agilerl.networks.q_networks import QNetwork
from agilerl.runs.signals import Stopped, StopSignals
from agilerl.training.manifest.resolve import net_config
from agilerl.training.manifest.sizes import estimate
from agilerl.training.manifest.tasks import task_of

spaces = gym.spaces
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": spaces.Box(-1, 1, (3,), np.float32),
    "image": spaces.Box(0, 255, (12, 12, 3), np.uint8),
    "discrete": spaces.Discrete(5),
    "multi-discrete": spaces.MultiDiscrete([3, 4]),
    "multi-binary": spaces.MultiBinary(4),
    "picture": spaces.Box(0, 255, (24, 24, 3), np.uint8),
    "dict": spaces.Dict({"where": spaces.Discrete(4), "camera": spaces.Box(0, 255, (3, 6, 6), np.uint8)}),
    "tuple": spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)]),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "box": spaces.Box(-1, 1, (2,), np.float32),
    "discrete": spaces.Discrete(3),
    "multi-discrete": spaces.MultiDiscrete([2, 3]),
    "multi-binary": spaces.MultiBinary(2),
}
SHORT: dict[str, Any] = {
    "population": 1, "num_envs": 2, "steps": 16, "training.evo_steps": 16, "eval_episodes": 1, "out": None,
    "verbose": False, "batch_size": 8, "elite_rescore_episodes": 0,
}  # fmt: skip


class Sampled(Episodes):
    """Random observations of a space, four steps an episode."""

    length = 4

    def __init__(self, observed: gym.Space[Any], actions: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observed, actions

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.observation_space.seed(seed)
        return super().reset(seed=seed)

    def observe(self) -> Any:
        return self.observation_space.sample()

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(action)
        return 1.0


def short(algo: str) -> dict[str, Any]:
    if algo in ("PPO", "PQN"):
        return {**SHORT, "learn_step": 8, "update_epochs": 1}
    return {**SHORT, "learning_delay": 8, "learn_step": 4, **({} if algo in ("DQN", "QRDQN") else {"random_steps": 8})}


def learns_from_data(algo: str) -> bool:
    return bool(find_algorithm(algo).experience.name == "dataset")


FITTING = {**dict.fromkeys(("DQN", "QRDQN", "RainbowDQN"), ("discrete", "multi-discrete")), "PPO": tuple(ACTIONS),
           "SAC": ("box", "discrete"), **dict.fromkeys(("TD3", "DDPG", "TQC"), ("box",))}  # fmt: skip


OTHERS = ("NeuralTS", "NeuralUCB", "RecurrentPPO")  # of contexts, and another name of PPO


@pytest.mark.parametrize("observed", OBSERVATIONS)
@pytest.mark.parametrize(
    "algo",
    [n for n in available() if n not in (*LANGUAGE, *OTHERS) and not is_team(n) and not learns_from_data(n)],
)
def test_every_algorithm_trains_on_every_kind_of_observation_by_its_defaults(algo: str, observed: str) -> None:
    actions = ACTIONS[FITTING[algo][0] if algo in FITTING else "discrete"]
    run = agilerl.train(lambda: Sampled(OBSERVATIONS[observed], actions), algo, **short(algo))
    assert run.result["env_steps_member"] == 16
    assert run.result["updates"] > 0
    assert run.history == [[4.0]]


@pytest.mark.parametrize("taken", ACTIONS)
@pytest.mark.parametrize("algo", FITTING)
def test_every_algorithm_takes_the_actions_that_fit_and_names_those_that_do_not(algo: str, taken: str) -> None:
    def train() -> Any:
        return agilerl.train(lambda: Sampled(OBSERVATIONS["vector"], ACTIONS[taken]), algo, **short(algo))

    if taken in FITTING[algo]:
        assert train().history == [[4.0]]
    else:
        with pytest.raises(AlgorithmError, match=rf"{algo} needs .* actions; got .*fix: "):
            train()


@pytest.mark.parametrize("observed", ["vector", "discrete", "multi-binary"])
def test_recurrent_ppo_trains_by_its_defaults(observed: str) -> None:
    more = {**short("PPO"), "recurrent": True, "max_seq_len": 4}
    run = agilerl.train(lambda: Sampled(OBSERVATIONS[observed], ACTIONS["discrete"]), "PPO", **more)
    assert run.history == [[4.0]]
    assert run.manifest.network.encoder == {"hidden_state_size": 128, "num_layers": 2}
    assert run.manifest.network.encoder_config is None


@pytest.mark.parametrize(
    ("shape", "channels", "kernels", "strides", "weights"),
    [
        ((3, 10, 10), [32, 32], [3, 3], [1, 1], 88_356),
        ((3, 20, 20), [32, 64], [4, 3], [2, 2], 90_084),
        ((4, 84, 84), [32, 64, 64], [8, 4, 3], [4, 2, 1], 283_172),
        ((3, 96, 96), [32, 64, 64], [8, 4, 3], [4, 2, 1], 342_564),
        ((3, 256, 256), [32, 64, 64, 64, 64], [8, 4, 3, 3, 3], [4, 2, 1, 2, 2], 301_732),
    ],
)
def test_images_get_layers_by_their_size(
    shape: tuple[int, ...], channels: list[int], kernels: list[int], strides: list[int], weights: int
) -> None:
    expected = {"channel_size": channels, "kernel_size": kernels, "stride_size": strides}
    assert usual_layers(shape) == expected
    network = QNetwork(spaces.Box(0, 255, shape, np.uint8), spaces.Discrete(4), random_seed=0)
    assert sum(p.numel() for p in network.parameters()) == weights
    own = QNetwork(spaces.Box(0, 255, (3, 10, 10), np.uint8), spaces.Discrete(4), encoder_config={"channel_size": [4]})
    assert own.encoder.net_config["kernel_size"] == [3]  # who says anything about the layers says all of it


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 11, 12, 39, 40, 100, 600])
def test_no_size_of_image_is_without_a_default(side: int) -> None:
    network = QNetwork(spaces.Box(0, 255, (1, side, side), np.uint8), spaces.Discrete(2), random_seed=0)
    assert sum(p.numel() for p in network.encoder.parameters()) < 500_000


def test_the_encoder_that_is_built_stands_in_the_configuration(tmp_path: Path) -> None:
    run = agilerl.train(
        lambda: Sampled(OBSERVATIONS["picture"], ACTIONS["discrete"]), "PPO", **{**short("PPO"), "out": tmp_path}
    )
    written = load_manifest(run.path / "config.yaml")
    assert written.network.encoder == {"channel_size": [32, 64], "kernel_size": [4, 3], "stride_size": [2, 2]}
    assert written.network.encoder_config is None
    assert written.hash() == run.manifest.hash()
    assert {k: run.best.actor.encoder.net_config[k] for k in written.network.encoder} == written.network.encoder


def test_what_the_user_writes_about_dense_layers_is_refused_where_nothing_is_dense() -> None:
    base = preset_for("none", "PPO")
    image = Sampled(OBSERVATIONS["picture"], ACTIONS["discrete"])
    with pytest.raises(ConfigError, match=r"describes dense layers, but Box.* is not read by them\. fix: network\.enc"):
        task_of(apply_overrides(base, {"network.encoder_config.hidden_size": [32]})).resolve(image)
    nothing = task_of(apply_overrides(base, {"network.encoder_config": None})).resolve(image)
    assert nothing.network == task_of(base).resolve(image).network
    assert net_config(nothing, OBSERVATIONS["vector"])["encoder_config"] == nothing.network.encoder
    plain = apply_overrides(base, {"network.encoder_config": None})
    assert net_config(plain, OBSERVATIONS["vector"])["encoder_config"]["hidden_size"] == [64]


DENSE = {
    "a board": OBSERVATIONS["image"],
    "flags": spaces.Box(0.0, 1.0, (10, 10, 4), np.bool_),
    "dict": OBSERVATIONS["dict"],
    "tuple": OBSERVATIONS["tuple"],
    "nested": spaces.Dict(
        {"in": spaces.Tuple([OBSERVATIONS["dict"], spaces.MultiBinary(4)]), "at": spaces.Discrete(9)}
    ),
}
OTHER = {
    "a picture in it": spaces.Dict({"camera": OBSERVATIONS["picture"], "at": spaces.Discrete(2)}),
    "too much of it": spaces.Tuple([spaces.Discrete(2048), spaces.Discrete(2)]),
}


@pytest.mark.parametrize("name", DENSE)
def test_small_observations_are_read_side_by_side_and_members_share_rows(name: str, tmp_path: Path) -> None:
    def make() -> Sampled:
        return Sampled(DENSE[name], ACTIONS["discrete"])

    run = agilerl.train(make, "PPO", **{**short("PPO"), "out": tmp_path})
    assert json.loads((run.path / "run.json").read_text())["learner"] == "fused"
    assert load_manifest(run.path / "config.yaml").network == preset_for("none", "PPO").network
    assert type(run.best.actor.encoder).__name__ == "EvolvableMLP"
    own = {"network.encoder_config.hidden_size": [24]}
    assert task_of(apply_overrides(run.manifest, own)).resolve(make()).network.encoder_config.hidden_size == [24]


@pytest.mark.parametrize("name", OTHER)
def test_larger_ones_have_an_encoder_for_each_part(name: str) -> None:
    found = task_of(preset_for("none", "PPO")).resolve(Sampled(OTHER[name], ACTIONS["discrete"])).network
    assert found.encoder == {"latent_dim": 32, "mlp_config": {"hidden_size": [64]}}


def test_an_encoder_that_the_user_describes_is_built() -> None:
    cases: list[tuple[gym.Space[Any], dict[str, Any], str]] = [
        (DENSE["dict"], {"latent_dim": 8, "mlp_config": {"hidden_size": [8]}}, "EvolvableMultiInput"),
        (DENSE["a board"], {"channel_size": [8], "kernel_size": [3], "stride_size": [1]}, "EvolvableCNN"),
        (OTHER["a picture in it"], {"hidden_size": [16]}, "EvolvableMLP"),
        (OBSERVATIONS["picture"], {"hidden_size": [16]}, "EvolvableMLP"),
    ]
    for space, encoder, kind in cases:
        own = apply_overrides(preset_for("none", "PPO"), {"network.encoder": encoder, "network.encoder_config": None})
        found = task_of(own).resolve(Sampled(space, ACTIONS["discrete"]))
        assert found.network.encoder == encoder
        network = QNetwork(space, ACTIONS["discrete"], encoder_config=net_config(found, space)["encoder_config"])
        assert type(network.encoder).__name__ == kind


@pytest.mark.parametrize("key", ["network.encoder_config.channel_size", "channel_size", "stride_size"])
def test_keys_of_image_encoders_are_shown_their_place(key: str) -> None:
    with pytest.raises(
        ConfigError, match=r"image keys belong in network\.encoder\. fix: network\.encoder\.(channel|stride)_"
    ):
        build_manifest("CarRacing-v3", overrides={key: [16]})
    with pytest.raises(
        ConfigError, match=r"image keys belong in network\.encoder\. fix: network\.encoder\.channel_size"
    ):
        manifest_from({"network": {"encoder_config": {"channel_size": [16]}}})
    found = build_manifest("CarRacing-v3", "DQN", overrides={"network.encoder.channel_size": [16]})
    assert found.network.encoder == {"channel_size": [16]}


ABSURD: list[tuple[dict[str, Any], str]] = [
    ({"environment.num_envs": 100_000_000}, r"environment\.num_envs=100000000 x training\.pop_size=4"),
    ({"training.pop_size": 1_000_000_000}, r"training\.pop_size=1000000000"),
    ({"network.encoder_config.hidden_size": [200_000, 200_000]}, r"training\.pop_size=4 x network"),
    ({"replay_buffer.max_size": 10**11, "training.max_steps": 10**11}, r"replay_buffer\.max_size=100000000000"),
    ({"training.eval_episodes": 10**9}, r"training\.eval_episodes=1000000000"),
]


@pytest.mark.parametrize(("changes", "named"), ABSURD)
def test_absurd_sizes_are_named_before_memory_is_taken(
    changes: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("agilerl.training.manifest.environment_task.available_bytes", lambda: 64 * 2**30)
    with pytest.raises(ConfigError, match=named + r".* would take at least [\d,]+ GiB of memory; 64 GiB are free"):
        agilerl.train("CartPole-v1", "DQN", out=tmp_path, verbose=False, **changes)
    assert not list(tmp_path.rglob("*"))


def test_sizes_are_counted_by_hand() -> None:
    changes = {"training.pop_size": 2, "environment.num_envs": 3, "training.eval_episodes": 5,
               "training.confirm_episodes": 20, "replay_buffer.max_size": 1000, "network.latent_dim": 8,
               "network.encoder_config.hidden_size": [10], "network.head_config.hidden_size": [6]}  # fmt: skip
    manifest = build_manifest("CartPole-v1", "DQN", overrides=changes)
    found = estimate(manifest, spaces.Box(-1, 1, (4,), np.float32), spaces.Discrete(2))
    weights = 4 * 10 + 10 * 8 + 8 * 6 + 6 * 2
    assert list(found.values()) == [6 * 2016, 20 * 2016, 2 * (20_000 + 32 * weights), 1000 * 24]


REFUSED: list[tuple[dict[str, Any], type[AgileRLError], str]] = [
    ({"environment.kwargs": {"foo": 1}}, EnvError, r"CartPole-v1 cannot be made with .*foo.* environment\.kwargs"),
    ({"network.encoder_config.activation": "Foo"}, ConfigError, "Foo"),
    ({"network.encoder": {"hidden_sizes": [3]}}, ConfigError, "hidden_sizes"),
    ({"learner": "fused", "network.simba": True}, ConfigError, "learner='fused' is not possible"),
    ({"replay_buffer.max_size": 10}, ConfigError, r"algorithm\.batch_size=128 is more .*max_size=10"),
]


@pytest.mark.parametrize(("changes", "kind", "named"), REFUSED)
def test_a_refused_run_leaves_nothing_behind(
    changes: dict[str, Any], kind: type[AgileRLError], named: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=named):
        agilerl.train("CartPole-v1", "DQN", out=tmp_path, verbose=False, **changes)
    assert not list(tmp_path.rglob("*"))


def test_a_signal_ends_the_setting_up_at_once_and_a_running_run_at_its_next_step() -> None:
    with StopSignals() as signals, pytest.raises(Stopped) as raised:
        os.kill(os.getpid(), signal.SIGTERM)
    assert raised.value.signum == signals.received == signal.SIGTERM
    with StopSignals() as signals:
        signals.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM  # the step that is being made ends first
        with pytest.raises(Stopped):
            signals.check()


def test_runs_are_named_by_the_environment_that_was_made_and_the_one_that_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    lambdas = [lambda: gym.make("CartPole-v1"), lambda: Sampled(OBSERVATIONS["vector"], ACTIONS["discrete"])]
    runs = [agilerl.train(make, "DQN", **{**short("DQN"), "out": tmp_path}) for make in lambdas]
    assert [run.path and run.path.parent.name for run in runs] == ["CartPole-v1", "Sampled"]
    with pytest.warns(UserWarning, match="Taxi-v3 is retired in Gymnasium; Taxi-v4 is used"):
        retired = agilerl.train("Taxi-v3", "DQN", **{**short("DQN"), "out": tmp_path})
    assert retired.path.parent.name == "Taxi-v4_for_Taxi-v3"
    facts = json.loads((retired.path / "run.json").read_text())
    assert (facts["asked_env"], retired.manifest.environment.name) == ("Taxi-v3", "Taxi-v4")
