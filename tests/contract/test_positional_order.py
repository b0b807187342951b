"""Positional arguments are those of the published library (2.7.1), in its order; whatever differs is keyword-only."""

from __future__ import annotations

import inspect
import warnings
from importlib import import_module
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from agilerl import errors
from agilerl.algorithms import CQN, DDPG, MATD3, TD3
from agilerl.errors import ConfigError
from agilerl.modules import DummyEvolvable, EvolvableMLP, ModuleDict
from agilerl.networks import QNetwork, StochasticActor
from agilerl.networks.base import EvolvableNetwork
from agilerl.networks.q_networks import RainbowQNetwork
from agilerl.utils.utils import create_population

VECTOR, CHOICE, BOX = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), gym.spaces.Box(-1, 1, (2,))
# Names in the order of the published signatures, up to its first starred argument.
PUBLISHED = {
    "agilerl.algorithms.dqn.DQN": (
        "observation_space action_space index hp_config net_config batch_size lr learn_step gamma tau mut double "
        "normalize_images actor_network device accelerator cudagraphs wrap"
    ),
    "agilerl.algorithms.cqn.CQN": (
        "observation_space action_space index hp_config net_config batch_size lr learn_step gamma tau double "
        "normalize_images mut actor_network device accelerator wrap"
    ),
    "agilerl.algorithms.dqn_rainbow.RainbowDQN": (
        "observation_space action_space index hp_config net_config batch_size lr learn_step gamma tau beta prior_eps "
        "num_atoms v_min v_max noise_std n_step mut normalize_images combined_reward actor_network device accelerator "
        "wrap"
    ),
    "agilerl.algorithms.ddpg.DDPG": (
        "observation_space action_space O_U_noise expl_noise vect_noise_dim mean_noise theta dt index hp_config "
        "net_config batch_size lr_actor lr_critic learn_step gamma tau normalize_images mut policy_freq actor_network "
        "critic_network share_encoders device accelerator wrap"
    ),
    "agilerl.algorithms.td3.TD3": (
        "observation_space action_space O_U_noise vect_noise_dim expl_noise mean_noise theta dt index hp_config "
        "net_config batch_size lr_actor lr_critic learn_step gamma tau normalize_images mut policy_freq actor_network "
        "critic_networks share_encoders device accelerator wrap"
    ),
    "agilerl.algorithms.ppo.PPO": (
        "observation_space action_space index hp_config net_config batch_size lr learn_step gamma gae_lambda mut "
        "action_std_init clip_coef ent_coef vf_coef max_grad_norm target_kl normalize_images update_epochs "
        "actor_network critic_network share_encoders num_envs use_rollout_buffer rollout_buffer_config recurrent "
        "device accelerator wrap bptt_sequence_type max_seq_len"
    ),
    "agilerl.algorithms.maddpg.MADDPG": (
        "observation_spaces action_spaces agent_ids O_U_noise expl_noise vect_noise_dim mean_noise theta dt index "
        "hp_config net_config batch_size lr_actor lr_critic learn_step gamma tau mut normalize_images actor_networks "
        "critic_networks device accelerator torch_compiler wrap"
    ),
    "agilerl.algorithms.matd3.MATD3": (
        "observation_spaces action_spaces agent_ids O_U_noise expl_noise vect_noise_dim mean_noise theta dt index "
        "hp_config policy_freq net_config batch_size lr_actor lr_critic learn_step gamma tau normalize_images mut "
        "actor_networks critic_networks device accelerator torch_compiler wrap"
    ),
    "agilerl.algorithms.ippo.IPPO": (
        "observation_spaces action_spaces agent_ids index hp_config net_config batch_size lr learn_step gamma "
        "gae_lambda mut action_std_init clip_coef ent_coef vf_coef max_grad_norm target_kl normalize_images "
        "update_epochs actor_networks critic_networks action_batch_size device accelerator torch_compiler wrap"
    ),
    "agilerl.components.replay_buffer.ReplayBuffer": "max_size device dtype",
    "agilerl.components.replay_buffer.MultiStepReplayBuffer": "max_size n_step gamma device dtype",
    "agilerl.components.replay_buffer.PrioritizedReplayBuffer": "max_size alpha device dtype",
    "agilerl.components.multi_agent_replay_buffer.MultiAgentReplayBuffer": "memory_size field_names agent_ids device",
    "agilerl.components.rollout_buffer.RolloutBuffer": (
        "capacity observation_space action_space num_envs device gae_lambda gamma recurrent hidden_state_architecture "
        "use_gae wrap_at_capacity max_seq_len bptt_sequence_type"
    ),
    "agilerl.hpo.mutation.Mutations": (
        "no_mutation architecture new_layer_prob parameters activation rl_hp mutation_sd activation_selection "
        "mutate_elite rand_seed device accelerator"
    ),
    "agilerl.hpo.tournament.TournamentSelection": "tournament_size elitism population_size eval_loop",
    "agilerl.modules.base.ModuleDict": "modules device",
    "agilerl.modules.dummy.DummyEvolvable": "device module module_fn module_kwargs",
    "agilerl.modules.cnn.EvolvableCNN": (
        "input_shape num_outputs channel_size kernel_size stride_size sample_input block_type activation "
        "output_activation min_hidden_layers max_hidden_layers min_channel_size max_channel_size layer_norm "
        "init_layers device name random_seed"
    ),
    "agilerl.modules.lstm.EvolvableLSTM": (
        "input_size hidden_state_size num_outputs num_layers output_activation min_hidden_state_size "
        "max_hidden_state_size min_layers max_layers dropout device name random_seed"
    ),
    "agilerl.modules.mlp.EvolvableMLP": (
        "num_inputs num_outputs hidden_size activation output_activation min_hidden_layers max_hidden_layers "
        "min_mlp_nodes max_mlp_nodes layer_norm output_layernorm output_vanish init_layers noisy noise_std new_gelu "
        "device name random_seed"
    ),
    "agilerl.modules.multi_input.EvolvableMultiInput": (
        "observation_space num_outputs latent_dim vector_space_mlp cnn_config mlp_config init_dicts output_activation "
        "output_layernorm min_latent_dim max_latent_dim device name random_seed"
    ),
    "agilerl.modules.resnet.EvolvableResNet": (
        "input_shape num_outputs channel_size kernel_size stride_size num_blocks output_activation scale_factor "
        "min_blocks max_blocks min_channel_size max_channel_size device name random_seed"
    ),
    "agilerl.modules.simba.EvolvableSimBa": (
        "num_inputs num_outputs hidden_size num_blocks output_activation scale_factor min_blocks max_blocks "
        "min_mlp_nodes max_mlp_nodes device name random_seed"
    ),
    "agilerl.networks.actors.DeterministicActor": (
        "observation_space action_space encoder_cls encoder_config head_config min_latent_dim max_latent_dim "
        "latent_dim simba recurrent device random_seed encoder_name"
    ),
    "agilerl.networks.actors.StochasticActor": (
        "observation_space action_space encoder_cls encoder_config head_config action_std_init squash_output "
        "min_latent_dim max_latent_dim latent_dim simba recurrent device random_seed encoder_name"
    ),
    "agilerl.networks.base.EvolvableNetwork": (
        "observation_space encoder_cls encoder_config encoder_name action_space min_latent_dim max_latent_dim "
        "latent_dim simba recurrent device random_seed"
    ),
    "agilerl.networks.q_networks.QNetwork": (
        "observation_space action_space encoder_cls encoder_config head_config min_latent_dim max_latent_dim "
        "latent_dim simba recurrent device random_seed"
    ),
    "agilerl.networks.q_networks.RainbowQNetwork": (
        "observation_space action_space support num_atoms noise_std encoder_config head_config min_latent_dim "
        "max_latent_dim latent_dim device random_seed"
    ),
    "agilerl.networks.q_networks.ContinuousQNetwork": (
        "observation_space action_space encoder_cls encoder_config head_config min_latent_dim max_latent_dim "
        "latent_dim simba recurrent device random_seed"
    ),
    "agilerl.networks.value_networks.ValueNetwork": (
        "observation_space encoder_cls encoder_config head_config min_latent_dim max_latent_dim latent_dim simba "
        "recurrent device random_seed encoder_name"
    ),
    "agilerl.wrappers.agent.RSNorm": "agent epsilon norm_obs_keys",
    "agilerl.wrappers.agent.AsyncAgentsWrapper": "agent",
    "agilerl.training.train_off_policy.train_off_policy": (
        "env env_name algo pop memory INIT_HP MUT_P swap_channels max_steps evo_steps eval_steps eval_loop "
        "learning_delay eps_start eps_end eps_decay target n_step per n_step_memory tournament mutation checkpoint "
        "checkpoint_path overwrite_checkpoints save_elite elite_path wb verbose accelerator wandb_api_key "
        "wandb_kwargs"
    ),
    "agilerl.training.train_on_policy.train_on_policy": (
        "env env_name algo pop INIT_HP MUT_P swap_channels max_steps evo_steps eval_steps eval_loop target tournament "
        "mutation checkpoint checkpoint_path overwrite_checkpoints save_elite elite_path wb verbose accelerator "
        "wandb_api_key wandb_kwargs collect_rollouts_fn"
    ),
    "agilerl.training.train_offline.train_offline": (
        "env env_name dataset algo pop memory INIT_HP MUT_P swap_channels max_steps evo_steps eval_steps eval_loop "
        "target tournament mutation checkpoint checkpoint_path overwrite_checkpoints save_elite elite_path wb verbose "
        "accelerator minari_dataset_id remote wandb_api_key"
    ),
    "agilerl.training.train_multi_agent_off_policy.train_multi_agent_off_policy": (
        "env env_name algo pop memory sum_scores INIT_HP MUT_P swap_channels max_steps evo_steps eval_steps eval_loop "
        "learning_delay target tournament mutation checkpoint checkpoint_path overwrite_checkpoints save_elite "
        "elite_path wb verbose accelerator wandb_api_key"
    ),
    "agilerl.training.train_multi_agent_on_policy.train_multi_agent_on_policy": (
        "env env_name algo pop sum_scores INIT_HP MUT_P swap_channels max_steps evo_steps eval_steps eval_loop target "
        "tournament mutation checkpoint checkpoint_path overwrite_checkpoints save_elite elite_path wb verbose "
        "accelerator wandb_api_key"
    ),
    "agilerl.utils.utils.create_population": (
        "algo net_config INIT_HP observation_space action_space hp_config actor_network critic_network agent_wrapper "
        "wrapper_kwargs population_size num_envs device accelerator torch_compiler tokenizer model_name lora_config "
        "vllm_config algo_kwargs"
    ),
    "agilerl.utils.utils.make_vect_envs": "env_name num_envs",
    "agilerl.utils.utils.make_multi_agent_vect_envs": "env num_envs",}  # fmt: skip


def positional(path: str) -> list[str]:
    module, name = path.rsplit(".", 1)
    published = getattr(import_module(module), name)
    function = published.__init__ if isinstance(published, type) else published
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.name != "self"]


@pytest.mark.parametrize("path", PUBLISHED)
def test_no_position_means_another_argument_than_published(path: str) -> None:
    published = PUBLISHED[path].split()
    ours = positional(path)
    assert ours[: len(published)] == published[: len(ours)]
    assert len(ours) >= min(4, len(published))


def test_noise_and_double_are_where_scripts_put_them() -> None:
    assert DDPG(VECTOR, BOX, False, 0.3).O_U_noise is False
    assert DDPG(VECTOR, BOX, False, 0.3).expl_noise == 0.3
    assert TD3(VECTOR, BOX, False, 4, 0.3).expl_noise == 0.3
    assert CQN(VECTOR, CHOICE, 0, None, None, 64, 1e-4, 5, 0.99, 1e-3, True).double is True
    team = MATD3([VECTOR, VECTOR], [BOX, BOX], ["a", "b"], False, 0.1, 1, 0.0, 0.15, 1e-2, 0, None, 3)
    assert team.policy_freq == 3


def test_a_module_dict_holds_the_modules_that_it_is_given() -> None:
    net, other = EvolvableMLP(3, 2, [8], random_seed=1), EvolvableMLP(3, 2, [8], activation="ELU", random_seed=2)
    both = ModuleDict({"a": net}, "cpu")
    both.update({"b": other})
    assert (both.keys(), both["a"], both.get("b"), both.get("c"), both.get("c", net)) == (
        ["a", "b"],
        net,
        other,
        None,
        net,
    )
    assert both.activation == "ReLU"
    assert len(both.state_dict()) == 8
    twin = both.clone()
    assert twin.keys() == ["a", "b"]
    assert torch.equal(twin["a"].model.linear_0.weight, net.model.linear_0.weight)
    assert twin["a"] is not net
    assert both.get_init_dict()["modules"] == {"a": net, "b": other}
    assert both.pop("a") is net
    assert both.pop("a", None) is None
    with pytest.raises(KeyError):
        both.pop("a")
    assert ModuleDict([("x", other)]).keys() == ["x"]
    with pytest.raises(TypeError, match=r"modules must be a mapping; got 'cpu'\. fix: device='cpu'"):
        ModuleDict("cpu")  # type: ignore[arg-type]


def test_a_wrapped_module_may_come_before_or_after_its_device() -> None:
    module = nn.Linear(2, 2)
    for wrapped in (DummyEvolvable("cpu", module), DummyEvolvable(module), DummyEvolvable(module, "cpu")):  # type: ignore[arg-type]
        assert wrapped.module is module
    assert DummyEvolvable("cpu", None, nn.Linear, {"in_features": 2, "out_features": 3}).module.out_features == 3


@pytest.mark.parametrize("device", [{"a": 1}, None, 3, [16], nn.Linear(1, 1)])
@pytest.mark.parametrize("make", [
    lambda device: EvolvableMLP(3, 2, [8], device=device), lambda device: QNetwork(VECTOR, CHOICE, device=device),
    lambda device: ModuleDict({}, device),
])  # fmt: skip
def test_what_is_no_device_is_an_error(make: Any, device: Any) -> None:
    with pytest.raises(TypeError, match="device must be a device or its name; got"):
        make(device)


def test_networks_take_their_options_in_the_published_order() -> None:
    class Plain(EvolvableNetwork):
        def __init__(self, observation_space: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(observation_space, *args, **kwargs)
            self.build_head(2)

    net = Plain(VECTOR, None, {"hidden_size": [8]}, "encoder", CHOICE, 4, 32, 16)
    assert (net.action_space, net.min_latent_dim, net.max_latent_dim, net.latent_dim) == (CHOICE, 4, 32, 16)
    assert QNetwork(VECTOR, CHOICE, None, {"hidden_size": [8]}, {"hidden_size": [8]}, 4, 32, 16).latent_dim == 16
    with pytest.raises(TypeError, match="positional"):
        StochasticActor(VECTOR, BOX, None, None, None, 0.0)  # published: a log deviation, of another meaning here
    assert np.isfinite(
        StochasticActor(VECTOR, BOX, latent_dim=16).output(np.zeros(3, np.float32)).detach().numpy()
    ).all()


def test_populations_are_made_in_both_published_orders() -> None:
    net, init = {"encoder_config": {"hidden_size": [8]}}, {"BATCH_SIZE": 32}
    old = create_population("DQN", VECTOR, CHOICE, net, init, population_size=2, seed=1)
    new = create_population("DQN", net, init, VECTOR, CHOICE, population_size=2, seed=1)
    for one, other in zip(old, new, strict=True):
        assert one.batch_size == other.batch_size == 32
        for mine, theirs in zip(one.actor.parameters(), other.actor.parameters(), strict=True):
            assert torch.equal(mine, theirs)
    team = create_population("MADDPG", [VECTOR] * 2, [BOX] * 2, net, init, agent_ids=["a", "b"], seed=1)
    assert team[0].agent_ids == ["a", "b"]


def test_a_compiler_changes_nothing_and_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_warned", set())
    with pytest.warns(errors.AgileRLWarning, match="torch_compiler='default' changes nothing"):
        create_population("DQN", None, None, VECTOR, CHOICE, torch_compiler="default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create_population("DQN", None, None, VECTOR, CHOICE, torch_compiler="default")


def test_a_rainbow_network_gives_values_probabilities_and_their_logarithms() -> None:
    net = RainbowQNetwork(VECTOR, CHOICE, torch.linspace(-1, 1, 5), 5, noisy=False)
    obs = np.ones((2, 3), np.float32)
    chances, logs = net(obs, q=False), net(obs, q=False, log=True)
    assert chances.shape == (2, 2, 5)
    torch.testing.assert_close(chances.sum(-1), torch.ones(2, 2))
    torch.testing.assert_close(logs.exp(), chances)
    torch.testing.assert_close((chances * torch.linspace(-1, 1, 5)).sum(-1), net(obs))
    with pytest.raises(ConfigError, match="has no distribution"):
        RainbowQNetwork(VECTOR, CHOICE, distributional=False)(obs, q=False)
