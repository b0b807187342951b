"""Public signatures against a stored table: names, order, defaults; what is new comes after `*`."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from agilerl.algorithms import DDPG, PPO, SAC, TD3, RainbowDQN
from agilerl.algorithms.core.base import EvolvableAlgorithm
from agilerl.algorithms.core.optimizer_wrapper import OptimizerWrapper
from agilerl.algorithms.core.registry import HyperparameterConfig, NetworkGroup, RLParameter
from agilerl.algorithms.core.single_agent import RLAlgorithm
from agilerl.algorithms.dqn import DQN
from agilerl.components.replay_buffer import ReplayBuffer
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.modules.base import EvolvableModule
from agilerl.modules.mlp import EvolvableMLP
from agilerl.networks.q_networks import QNetwork
from agilerl.rollouts.on_policy import collect_rollouts, collect_rollouts_recurrent
from agilerl.training.train_off_policy import train_off_policy
from agilerl.training.train_on_policy import train_on_policy
from agilerl.utils import utils

# A published argument never changes its place, name or default;
# an exception is written beside it. Adding a keyword-only argument means adding it here.
TABLE: dict[str, tuple[Any, str]] = {
    "create_population": (
        utils.create_population,  # the published `device` and `accelerator` keep their places
        "algo net_config=None INIT_HP=None observation_space=None action_space=None hp_config=None actor_network=None "
        "critic_network=None agent_wrapper=None wrapper_kwargs=None population_size=1 num_envs=1 device='cpu' "
        "accelerator=None torch_compiler=None tokenizer=None model_name=None lora_config=None vllm_config=None "
        "algo_kwargs=None * state_dim=None action_dim=None one_hot=None seed=None agent_ids=None",
    ),
    "make_vect_envs": (
        utils.make_vect_envs,
        "env_name=None num_envs=1 * make_env=None should_async_vector=None extra_wrappers=None seed=None backend=None "
        "preprocessing=None healing=False num_workers=None deadline_s=60.0 max_restarts=10 asynchronous=False "
        "**env_kwargs",
    ),
    "default_progress_bar": (utils.default_progress_bar, "max_steps accelerator=None"),
    "save_population_checkpoint": (
        utils.save_population_checkpoint,
        "population save_path overwrite_checkpoints accelerator=None",
    ),
    "tournament_selection_and_mutation": (
        utils.tournament_selection_and_mutation,
        "population tournament mutation env_name='' algo=None elite_path=None save_elite=False accelerator=None "
        "language_model=False",
    ),
    "ReplayBuffer": (
        ReplayBuffer,  # without `max_size` the older dialect is meant: memory_size, field_names
        "max_size=None device='cpu' dtype=torch.float32 * memory_size=None field_names=None seed=None",
    ),
    "ReplayBuffer.sample": (ReplayBuffer.sample, "self batch_size return_idx=False"),
    "ReplayBuffer.save_to_memory": (ReplayBuffer.save_to_memory, "self *fields is_vectorised=False"),
    "TournamentSelection": (
        TournamentSelection,
        "tournament_size elitism population_size eval_loop=1 * seed=None",
    ),
    "TournamentSelection.select": (TournamentSelection.select, "self population"),
    "Mutations": (
        Mutations,
        "no_mutation architecture new_layer_prob parameters activation rl_hp mutation_sd=0.1 activation_selection=None "
        "mutate_elite=True rand_seed=None device='cpu' accelerator=None * published=False noise_bound=0.02 "
        "super_noise_bound=0.05 removal_bound=0.1 removal=True algo=None arch=None agent_ids=None "
        "rl_hp_selection=None min_lr=None max_lr=None min_learn_step=None max_learn_step=None min_batch_size=None "
        "max_batch_size=None",
    ),
    "Mutations.mutation": (Mutations.mutation, "self population pre_training_mut=False"),
    "RLParameter": (
        RLParameter,
        "min max shrink_factor=0.8 grow_factor=1.2 dtype=<class 'float'> value=None",
    ),
    "HyperparameterConfig": (HyperparameterConfig, "**parameters"),
    "OptimizerWrapper": (
        OptimizerWrapper,
        "optimizer_cls networks lr optimizer_kwargs=None network_names=None lr_name=None",
    ),
    "NetworkGroup": (
        NetworkGroup,  # `eval` and `shared` are other published names of the first two, which is why the first is None
        "eval_network=None shared_networks=None policy=False * eval=None shared=None",
    ),
    "EvolvableAlgorithm": (
        EvolvableAlgorithm.__init__,  # `__new__` captures the arguments, so the class itself shows *args, **kwargs
        "self index=0 hp_config=None device='cpu' accelerator=None torch_compiler=None name=None",
    ),
    "EvolvableAlgorithm.clone": (EvolvableAlgorithm.clone, "self index=None wrap=True"),
    "EvolvableAlgorithm.load": (EvolvableAlgorithm.load, "path device='cpu' accelerator=None"),
    "EvolvableAlgorithm.save_checkpoint": (EvolvableAlgorithm.save_checkpoint, "self path"),
    "EvolvableAlgorithm.load_checkpoint": (EvolvableAlgorithm.load_checkpoint, "self path"),
    "RLAlgorithm": (
        RLAlgorithm,
        "observation_space action_space index=0 hp_config=None device='cpu' accelerator=None torch_compiler=None "
        "normalize_images=None name=None * seed=None",
    ),
    "RLAlgorithm.population": (
        RLAlgorithm.population,
        "size observation_space action_space wrapper_cls=None wrapper_kwargs=None * seed=None **kwargs",
    ),
    "RLAlgorithm.test": (
        RLAlgorithm.test,
        "self env swap_channels=False max_steps=None loop=1 * vectorized=True callback=None",
    ),
    "DQN": (
        DQN,
        "observation_space action_space index=0 hp_config=None net_config=None batch_size=64 lr=0.0001 learn_step=5 "
        "gamma=0.99 tau=0.001 mut=None double=False normalize_images=True actor_network=None device='cpu' "
        "accelerator=None cudagraphs=False wrap=True * seed=None",
    ),
    "DQN.get_action": (DQN.get_action, "self obs epsilon=0.0 action_mask=None **kwargs"),
    # published without what follows `experiences`: `learn_from` of the algorithm says what it takes of that
    "DQN.learn": (DQN.learn, "self experiences *args **kwargs"),
    "DDPG": (
        DDPG,
        "observation_space action_space O_U_noise=True expl_noise=0.1 vect_noise_dim=1 mean_noise=0.0 theta=0.15 "
        "dt=0.01 index=0 hp_config=None net_config=None batch_size=64 lr_actor=0.0001 lr_critic=0.001 learn_step=5 "
        "gamma=0.99 tau=0.001 normalize_images=True mut=None policy_freq=2 actor_network=None "
        "critic_network=None share_encoders=False device='cpu' accelerator=None wrap=True * seed=None",
    ),
    "TD3": (
        TD3,
        "observation_space action_space O_U_noise=True vect_noise_dim=1 expl_noise=0.1 mean_noise=0.0 theta=0.15 "
        "dt=0.01 index=0 hp_config=None net_config=None batch_size=64 lr_actor=0.0001 lr_critic=0.001 learn_step=5 "
        "gamma=0.99 tau=0.005 normalize_images=True mut=None policy_freq=2 actor_network=None "
        "critic_networks=None share_encoders=False device='cpu' accelerator=None wrap=True * policy_noise=0.2 "
        "noise_clip=0.5 seed=None",
    ),
    "SAC": (
        SAC,
        "observation_space action_space index=0 hp_config=None net_config=None batch_size=256 lr_actor=0.0003 "
        "lr_critic=0.0003 lr_alpha=0.0003 learn_step=1 gamma=0.99 tau=0.005 normalize_images=True mut=None "
        "init_temperature=1.0 target_entropy=None learn_temperature=True actor_network=None critic_networks=None "
        "share_encoders=False device='cpu' accelerator=None wrap=True * seed=None",
    ),
    "RainbowDQN": (
        RainbowDQN,
        "observation_space action_space index=0 hp_config=None net_config=None batch_size=64 lr=0.0001 "
        "learn_step=5 gamma=0.99 tau=0.001 beta=0.4 prior_eps=1e-06 num_atoms=51 v_min=0.0 v_max=200.0 "
        "noise_std=0.5 n_step=3 mut=None normalize_images=True combined_reward=False actor_network=None "
        "device='cpu' accelerator=None wrap=True * double=True dueling=True distributional=True noisy=True "
        "seed=None",
    ),
    "RainbowDQN.learn_from": (
        RainbowDQN.learn_from,
        "self experiences n_experiences=None per=False",
    ),
    "TD3.get_action": (
        TD3.get_action,
        "self obs training=None action_mask=None * epsilon=0.0",
    ),
    "QNetwork": (
        QNetwork,
        "observation_space action_space encoder_cls=None encoder_config=None head_config=None min_latent_dim=8 "
        "max_latent_dim=128 latent_dim=64 simba=False recurrent=False device='cpu' random_seed=None "
        "* scale_observations=False encoder_name='encoder'",
    ),
    "EvolvableMLP": (
        EvolvableMLP,
        "num_inputs num_outputs hidden_size activation='ReLU' output_activation=None min_hidden_layers=1 "
        "max_hidden_layers=3 min_mlp_nodes=32 max_mlp_nodes=500 layer_norm=False output_layernorm=False "
        "output_vanish=True init_layers=True noisy=False noise_std=0.5 * device='cpu' name='mlp' random_seed=None",
    ),
    "EvolvableModule.sample_mutation_method": (
        EvolvableModule.sample_mutation_method,
        "self new_layer_prob rng=None * excluded=()",
    ),
    "PPO": (
        PPO.__init__,  # published: action_std_init=0.0 (a logarithm there), share_encoders=True, an enum member
        "self observation_space action_space index=0 hp_config=None net_config=None batch_size=64 lr=0.0001 "
        "learn_step=2048 gamma=0.99 gae_lambda=0.95 mut=None action_std_init=0.6 clip_coef=0.2 ent_coef=0.01 "
        "vf_coef=0.5 max_grad_norm=0.5 target_kl=None normalize_images=True update_epochs=4 actor_network=None "
        "critic_network=None share_encoders=False num_envs=1 use_rollout_buffer=False rollout_buffer_config=None "
        "recurrent=False device='cpu' accelerator=None wrap=True bptt_sequence_type='chunked' max_seq_len=None * "
        "seed=None normalize_observations=False lr_schedule='constant' clip_schedule='constant' "
        "ent_schedule='constant' clip_value_loss=True noise_persistence=0.0 action_std_min=0.0 action_ent_steps=None "
        "action_scaling='bounds' squash_output=False",
    ),
    "train_on_policy": (
        train_on_policy,  # `algo` and `pop` keep their places and may be left out
        "env env_name algo=None pop=None INIT_HP=None MUT_P=None swap_channels=False max_steps=1000000 "
        "evo_steps=10000 eval_steps=None eval_loop=1 target=None tournament=None mutation=None checkpoint=None "
        "checkpoint_path=None overwrite_checkpoints=False save_elite=False elite_path=None wb=False verbose=True "
        "accelerator=None wandb_api_key=None wandb_kwargs=None collect_rollouts_fn=None * seed=None lockstep=True "
        "carry_envs=False learner='auto' threads=None sinks=() callbacks=() resume=None",
    ),
    "collect_rollouts": (
        collect_rollouts,
        "agent env n_steps=None last_obs=None last_done=None last_scores=None last_info=None",
    ),
    "collect_rollouts_recurrent": (
        collect_rollouts_recurrent,
        "agent env n_steps=None last_obs=None last_done=None last_scores=None last_info=None",
    ),
    "train_off_policy": (
        train_off_policy,  # published without defaults of `algo`, `pop` and `memory`
        "env env_name algo=None pop=None memory=None INIT_HP=None MUT_P=None swap_channels=False max_steps=1000000 "
        "evo_steps=10000 eval_steps=None eval_loop=1 learning_delay=0 eps_start=1.0 eps_end=0.1 eps_decay=0.995 "
        "target=None n_step=False per=False n_step_memory=None tournament=None mutation=None checkpoint=None "
        "checkpoint_path=None overwrite_checkpoints=False save_elite=False elite_path=None wb=False verbose=True "
        "accelerator=None wandb_api_key=None wandb_kwargs=None * seed=None lockstep=True carry_envs=False "
        "learner='auto' threads=None sinks=() callbacks=() resume=None",
    ),
}


def shown(function: Any) -> str:
    words, starred = [], False
    for parameter in inspect.signature(function).parameters.values():
        kind = parameter.kind
        if kind is parameter.KEYWORD_ONLY and not starred:
            words += ["*"]
        starred = starred or kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        prefix = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(kind, "")
        default = "" if parameter.default is parameter.empty else f"={parameter.default!r}"
        words.append(f"{prefix}{parameter.name}{default}")
    return " ".join(words)


@pytest.mark.parametrize("name", TABLE)
def test_signature_is_the_stored_one(name: str) -> None:
    function, stored = TABLE[name]
    assert shown(function) == stored
