"""Published callables take the published arguments by their names, in the published order, with the shared defaults."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from agilerl.algorithms import DDPG, MADDPG
from agilerl.core.signatures import constructor_signature, takes_any_name
from agilerl.modules import EvolvableLSTM, EvolvableMLP
from agilerl.networks.actors import StochasticActor
from agilerl.networks.q_networks import ContinuousQNetwork, QNetwork
from agilerl.networks.value_networks import ValueNetwork

# Path below `agilerl` -> arguments in the published order; "=value" where the default is the same.
PUBLISHED = {
    "algorithms.core.base.EvolvableAlgorithm.inspect_attributes": "agent input_args_only=False",
    "algorithms.core.base.EvolvableAlgorithm.reinit_optimizers": "optimizer=None",
    "algorithms.core.base.EvolvableAlgorithm.register_network_group": "group",
    "algorithms.core.base.EvolvableAlgorithm.register_mutation_hook": "hook",
    "algorithms.core.base.EvolvableAlgorithm.set_training_mode": "training",
    "algorithms.core.base.EvolvableAlgorithm.evolvable_attributes": "networks_only=False",
    "algorithms.core.base.EvolvableAlgorithm.clone": "index=None wrap=True",
    "algorithms.core.base.EvolvableAlgorithm.save_checkpoint": "path",
    "algorithms.core.base.EvolvableAlgorithm.load_checkpoint": "path",
    "algorithms.core.base.EvolvableAlgorithm.load": "path device='cpu' accelerator=None",
    "algorithms.core.base.RLAlgorithm.preprocess_observation": "observation",
    "algorithms.core.base.RLAlgorithm.test": "env swap_channels=False max_steps=None loop=1",
    "algorithms.core.base.RLAlgorithm.learn": "experiences",
    "algorithms.core.base.RLAlgorithm.get_action": "obs",
    "algorithms.core.base.MultiAgentRLAlgorithm.get_group_id": "agent_id",
    "algorithms.core.base.MultiAgentRLAlgorithm.get_network_id": "agent_id",
    "algorithms.dqn.DQN.get_action": "obs epsilon=0.0 action_mask=None",
    "algorithms.cqn.CQN.get_action": "obs epsilon=0.0 action_mask=None",
    "algorithms.dqn_rainbow.RainbowDQN.get_action": "obs action_mask=None training",
    "algorithms.dqn_rainbow.RainbowDQN.learn": "experiences n_experiences=None per=False",
    "algorithms.ddpg.DDPG.get_action": "obs training",
    "algorithms.ddpg.DDPG.reset_action_noise": "indices",
    "algorithms.ddpg.DDPG.soft_update": "net target",
    "algorithms.td3.TD3.get_action": "obs training",
    "algorithms.td3.TD3.soft_update": "net target",
    "algorithms.ppo.PPO.get_action": "obs action_mask=None hidden_state=None",
    "algorithms.ppo.PPO.evaluate_actions": "obs actions hidden_state=None",
    "algorithms.ppo.PPO.get_initial_hidden_state": "num_envs=1",
    "algorithms.ppo.PPO.learn": "experiences",
    "algorithms.maddpg.MADDPG.get_action": "obs infos=None",
    "algorithms.maddpg.MADDPG.action_noise": "agent_id",
    "algorithms.maddpg.MADDPG.reset_action_noise": "indices",
    "algorithms.maddpg.MADDPG.soft_update": "net target",
    "algorithms.maddpg.MADDPG.learn": "experiences",
    "algorithms.maddpg.MADDPG.test": "env swap_channels=False max_steps=None loop=1 sum_scores=True",
    "algorithms.matd3.MATD3.action_noise": "agent_id",
    "algorithms.matd3.MATD3.get_action": "obs infos=None",
    "algorithms.ippo.IPPO.get_action": "obs infos=None",
    "algorithms.ippo.IPPO.learn": "experiences",
    "algorithms.ippo.IPPO.test": "env swap_channels=False max_steps=None loop=1 sum_scores=True",
    "algorithms.neural_ucb_bandit.NeuralUCB.get_action": "obs action_mask=None",
    "algorithms.neural_ucb_bandit.NeuralUCB.test": "env swap_channels=False max_steps=100 loop=1",
    "algorithms.GRPO.get_action": "obs training=True repeat_prompts=True",
    "algorithms.GRPO.learn": "experiences turn_ids=None sampling_logps=None",
    "algorithms.LLMPPO.learn": "experiences turn_ids=None sampling_logps=None",
    "algorithms.LLMREINFORCE.learn": "experiences turn_ids=None sampling_logps=None",
    "algorithms.GRPO.save_checkpoint": "path lora_only=False save_optimizer=True",
    "algorithms.GRPO.load_checkpoint": "path load_optimizer=True",
    "algorithms.GRPO.test": "env loop=1",
    "algorithms.DPO.test": "env loop=1",
    "algorithms.core.optimizer_wrapper.OptimizerWrapper": (
        "optimizer_cls networks lr optimizer_kwargs=None network_names=None lr_name=None"
    ),
    "algorithms.core.registry.NetworkGroup": "eval_network shared_networks=None policy=False",
    "algorithms.core.registry.RLParameter": "min max shrink_factor=0.8 grow_factor=1.2 dtype value=None",
    "hpo.tournament.TournamentSelection": "tournament_size elitism population_size eval_loop=1",
    "hpo.tournament.TournamentSelection.select": "population",
    "hpo.mutation.Mutations.mutation": "population pre_training_mut=False",
    "hpo.mutation.Mutations.no_mutation": "individual",
    "hpo.mutation.Mutations.architecture_mutate": "individual",
    "hpo.mutation.Mutations.parameter_mutation": "individual",
    "hpo.mutation.Mutations.activation_mutation": "individual",
    "hpo.mutation.Mutations.rl_hyperparam_mutation": "individual",
    "modules.base.EvolvableModule": "device random_seed=None",
    "modules.base.EvolvableModule.change_activation": "activation output=False",
    "modules.base.EvolvableModule.preserve_parameters": "old_net new_net",
    "modules.base.EvolvableModule.get_mutation_probs": "new_layer_prob",
    "modules.base.EvolvableModule.sample_mutation_method": "new_layer_prob rng=None",
    "modules.base.EvolvableModule.disable_mutations": "mut_type=None",
    "modules.mlp.EvolvableMLP": (
        "num_inputs num_outputs hidden_size activation='ReLU' output_activation=None min_hidden_layers=1 "
        "max_hidden_layers=3 min_mlp_nodes=32 max_mlp_nodes=500 layer_norm output_layernorm=False output_vanish=True "
        "init_layers=True noisy=False noise_std=0.5 new_gelu=False device='cpu' name='mlp' random_seed=None"
    ),
    "modules.mlp.EvolvableMLP.forward": "x",
    "modules.mlp.EvolvableMLP.add_node": "hidden_layer=None numb_new_nodes=None",
    "modules.mlp.EvolvableMLP.remove_node": "hidden_layer=None numb_new_nodes=None",
    "modules.cnn.EvolvableCNN": (
        "input_shape num_outputs channel_size kernel_size stride_size sample_input=None block_type='Conv2d' "
        "activation='ReLU' output_activation=None min_hidden_layers=1 max_hidden_layers=6 min_channel_size "
        "max_channel_size=256 layer_norm=False init_layers=True device='cpu' name='cnn' random_seed=None"
    ),
    "modules.cnn.EvolvableCNN.forward": "x",
    "modules.cnn.EvolvableCNN.add_channel": "hidden_layer=None numb_new_channels=None",
    "modules.cnn.EvolvableCNN.remove_channel": "hidden_layer=None numb_new_channels=None",
    "modules.cnn.EvolvableCNN.change_kernel": "kernel_size=None hidden_layer=None",
    "modules.lstm.EvolvableLSTM": (
        "input_size hidden_state_size num_outputs num_layers=1 output_activation=None min_hidden_state_size "
        "max_hidden_state_size min_layers=1 max_layers dropout=0.0 device='cpu' name='lstm' random_seed=None"
    ),
    "modules.lstm.EvolvableLSTM.forward": "x hidden_state=None",
    "modules.lstm.EvolvableLSTM.add_node": "numb_new_nodes=None",
    "modules.multi_input.EvolvableMultiInput": (
        "observation_space num_outputs latent_dim vector_space_mlp=False cnn_config=None mlp_config=None "
        "lstm_config=None init_dicts=None output_activation=None min_latent_dim=8 max_latent_dim=128 device='cpu' "
        "name='multi_input' random_seed=None"
    ),
    "modules.multi_input.EvolvableMultiInput.forward": "x",
    "modules.multi_input.EvolvableMultiInput.add_latent_node": "numb_new_nodes=None",
    "modules.resnet.EvolvableResNet": (
        "input_shape num_outputs channel_size kernel_size stride_size num_blocks output_activation=None min_blocks=1 "
        "max_blocks=4 min_channel_size max_channel_size device='cpu' name='resnet' random_seed=None"
    ),
    "modules.simba.EvolvableSimBa": (
        "num_inputs num_outputs hidden_size num_blocks output_activation=None scale_factor=4 min_blocks=1 "
        "max_blocks=4 min_mlp_nodes max_mlp_nodes=500 device='cpu' name='simba' random_seed=None"
    ),
    "modules.custom_components.NoisyLinear": "in_features out_features std_init=0.5 device='cpu'",
    "modules.configs.NetConfig.get": "key default=None",
    "modules.configs.NetConfig.pop": "key default",
    "modules.configs.NetConfig.from_dict": "config",
    "modules.dummy.DummyEvolvable": "device module=None module_fn=None module_kwargs=None",
    "networks.base.EvolvableNetwork": (
        "observation_space encoder_cls=None encoder_config=None encoder_name='encoder' action_space=None "
        "min_latent_dim=8 max_latent_dim=128 latent_dim simba=False recurrent=False device='cpu' random_seed=None"
    ),
    "networks.base.EvolvableNetwork.extract_features": "x hidden_state=None",
    "networks.base.EvolvableNetwork.forward_head": "latent",
    "networks.base.EvolvableNetwork.build_network_head": "net_config=None",
    "networks.base.EvolvableNetwork.create_mlp": "num_inputs num_outputs name net_config",
    "networks.base.EvolvableNetwork.initialize_hidden_state": "batch_size=1",
    "networks.base.EvolvableNetwork.add_latent_node": "numb_new_nodes=None",
    "networks.base.EvolvableNetwork.remove_latent_node": "numb_new_nodes=None",
    "networks.q_networks.QNetwork.forward": "obs",
    "networks.q_networks.QNetwork": (
        "observation_space action_space encoder_cls=None encoder_config=None head_config=None min_latent_dim=8 "
        "max_latent_dim=128 latent_dim simba=False recurrent=False device='cpu' random_seed=None encoder_name"
    ),
    "networks.q_networks.RainbowQNetwork.forward": "obs q=True log=False",
    "networks.q_networks.ContinuousQNetwork.forward": "obs actions",
    "networks.value_networks.ValueNetwork.forward": "x hidden_state=None",
    "networks.actors.DeterministicActor": (
        "observation_space action_space encoder_cls=None encoder_config=None head_config=None min_latent_dim=8 "
        "max_latent_dim=128 latent_dim simba=False recurrent=False device='cpu' random_seed=None encoder_name"
    ),
    "networks.actors.DeterministicActor.forward": "obs",
    "networks.actors.DeterministicActor.rescale_action": "action low high output_activation",
    "networks.actors.DeterministicActor.get_output_bounds": "output_activation",
    "networks.actors.StochasticActor": (
        "observation_space action_space encoder_cls=None encoder_config=None head_config=None action_std_init "
        "squash_output=False min_latent_dim=8 max_latent_dim=128 latent_dim simba=False recurrent=False device='cpu' "
        "random_seed=None encoder_name"
    ),
    "networks.actors.StochasticActor.forward": "obs action_mask=None",
    "networks.actors.StochasticActor.action_log_prob": "action",
    "networks.actors.StochasticActor.scale_action": "action",
    "components.replay_buffer.ReplayBuffer": "max_size device='cpu' dtype",
    "components.replay_buffer.ReplayBuffer.add": "data",
    "components.replay_buffer.ReplayBuffer.sample": "batch_size return_idx=False",
    "components.replay_buffer.MultiStepReplayBuffer": "max_size n_step=3 gamma=0.99 device='cpu' dtype",
    "components.replay_buffer.MultiStepReplayBuffer.add": "data",
    "components.replay_buffer.MultiStepReplayBuffer.sample_from_indices": "idxs",
    "components.replay_buffer.PrioritizedReplayBuffer": "max_size alpha=0.6 device='cpu' dtype",
    "components.replay_buffer.PrioritizedReplayBuffer.sample": "batch_size beta=0.4",
    "components.replay_buffer.PrioritizedReplayBuffer.update_priorities": "idxs priorities",
    "components.multi_agent_replay_buffer.MultiAgentReplayBuffer": "memory_size field_names agent_ids device=None",
    "components.multi_agent_replay_buffer.MultiAgentReplayBuffer.sample": "batch_size",
    "components.multi_agent_replay_buffer.MultiAgentReplayBuffer.save_to_memory": "is_vectorised=False",
    "components.rollout_buffer.RolloutBuffer": (
        "capacity observation_space action_space num_envs=1 device='cpu' gae_lambda=0.95 gamma=0.99 recurrent=False "
        "hidden_state_architecture=None use_gae=True wrap_at_capacity=False max_seq_len=None bptt_sequence_type"
    ),
    "components.rollout_buffer.RolloutBuffer.add": (
        "obs action reward done value log_prob next_obs=None hidden_state=None episode_start=None action_mask=None"
    ),
    "components.rollout_buffer.RolloutBuffer.compute_returns_and_advantages": "last_value last_done",
    "components.rollout_buffer.RolloutBuffer.get": "batch_size=None",
    "components.rollout_buffer.RolloutBuffer.get_tensor_batch": "batch_size=None device=None",
    "components.sampler.Sampler": "memory dataset=None dataloader=None",
    "components.data.ReplayDataset": "buffer batch_size=256",
    "components.data.Transition": "obs action reward next_obs done batch_size device",
    "components.segment_tree.SegmentTree": "capacity operation init_value",
    "components.segment_tree.SumSegmentTree.sum": "start=0 end=0",
    "components.segment_tree.SumSegmentTree.retrieve": "upperbound",
    "components.segment_tree.MinSegmentTree.min": "start=0 end=0",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv": "env_fns copy=True context=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.reset": "seed=None options=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.step": "actions",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.step_async": "actions",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.step_wait": "timeout=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.reset_async": "seed=None options=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.reset_wait": "timeout=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.call_async": "name",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.call_wait": "timeout=None",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.get_attr": "name",
    "vector.pz_async_vec_env.AsyncPettingZooVecEnv.set_attr": "name values",
    "wrappers.agent.RSNorm": "agent epsilon=0.0001 norm_obs_keys=None",
    "wrappers.agent.RSNorm.get_action": "obs",
    "wrappers.agent.AsyncAgentsWrapper": "agent",
    "wrappers.learning.Skill": "env",
    "wrappers.learning.Skill.skill_reward": "observation reward terminated truncated info",
    "wrappers.learning.BanditEnv": "features targets",
    "wrappers.learning.BanditEnv.step": "k",
    "wrappers.pettingzoo_wrappers.PettingZooAutoResetParallelWrapper": "env",
    "utils.probe_envs_ma.MultiPolicyEnv.step": "action",
    "utils.probe_envs.PolicyEnv.step": "action",
    "components.running.RunningMeanStd": "shape=() epsilon=0.0001 device='cpu' dtype",
    "utils.utils.make_vect_envs": "env_name=None num_envs=1 make_env=None should_async_vector extra_wrappers=None",
    "utils.utils.make_multi_agent_vect_envs": "env num_envs=1",
    "utils.utils.make_skill_vect_envs": "env_name skill num_envs=1",
    "utils.utils.observation_space_channels_to_first": "observation_space",
    "utils.utils.save_population_checkpoint": "population save_path overwrite_checkpoints accelerator=None",
    "utils.utils.tournament_selection_and_mutation": (
        "population tournament mutation env_name algo=None elite_path=None save_elite=False accelerator=None "
        "language_model=False"
    ),
    "utils.utils.calculate_vectorized_scores": (
        "rewards terminations include_unterminated=False only_first_episode=True"
    ),
    "utils.utils.print_hyperparams": "pop",
    "utils.utils.plot_population_score": "pop",
    "utils.utils.default_progress_bar": "max_steps accelerator=None",
    "utils.utils.get_env_defined_actions": "info agents",
    "utils.utils.init_wandb": (
        "algo env_name init_hyperparams=None mutation_hyperparams=None wandb_api_key=None accelerator=None "
        "project='AgileRL' addl_args=None"
    ),
    "utils.utils.gather_tensor": "tensor accelerator",
    "utils.utils.aggregate_metrics_across_gpus": "accelerator metric_tensor",
    "utils.utils.consolidate_mutations": "population",
    "utils.evolvable_networks.get_activation": "activation_name new_gelu=False",
    "utils.evolvable_networks.create_mlp": (
        "input_size output_size hidden_size output_vanish output_activation=None noisy=False init_layers=True "
        "layer_norm=False output_layernorm=False activation='ReLU' noise_std device='cpu' name='mlp'"
    ),
    "utils.algo_utils.obs_channels_to_first": "observation expand_dims=False",
}


def resolved(path: str) -> Any:
    """The object at a dotted path: a module, then its attributes."""
    module, names = "agilerl", path.split(".")
    found = import_module(module)
    while names:
        name = names.pop(0)
        if not hasattr(found, name):
            import_module(f"{found.__name__}.{name}")
        found = getattr(found, name)
    return found


@pytest.mark.parametrize("path", PUBLISHED)
def test_published_arguments_are_taken(path: str) -> None:
    called = resolved(path)
    is_class = inspect.isclass(called)
    parameters = (constructor_signature(called) if is_class else inspect.signature(called)).parameters
    more = vars(called.__init__ if is_class else called).get("published", {})
    names = [word.partition("=")[0] for word in PUBLISHED[path].split()]
    by_name = {name for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    unknown = [name for name in names if name not in by_name and name not in more]
    assert not unknown or takes_any_name(parameters)
    positional = [name for name, p in parameters.items() if p.kind is p.POSITIONAL_OR_KEYWORD]
    ours = [name for name in positional if name in names]
    assert ours == [name for name in names if name in ours], "the published order"
    for word in PUBLISHED[path].split():
        name, has_default, value = word.partition("=")
        if has_default and name in parameters:
            assert repr(parameters[name].default) == value, name


OBS, CHOICE, BOX = spaces.Box(-1, 1, (3,)), spaces.Discrete(2), spaces.Box(-1, 1, (2,))


def test_published_names_mean_what_ours_mean() -> None:
    x, action = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    critic, value = ContinuousQNetwork(OBS, BOX, random_seed=1), ValueNetwork(OBS, random_seed=1)
    assert torch.equal(critic(obs=x, actions=action), critic(x, action))
    assert torch.equal(value(x=x), value(x))
    assert torch.equal(value.forward_head(latent=value.extract_features(x=x)), value(x))
    for std in (0.0, -1.0):
        actor = StochasticActor(OBS, BOX, action_std_init=std, random_seed=1)
        assert (actor.log_std_init, actor.clone().net_config["log_std_init"]) == (std, std)
    assert QNetwork(OBS, CHOICE, encoder_name="mine").encoder.name == "mine"
    net = EvolvableMLP(3, 2, [8], new_gelu=True, random_seed=1)
    assert "new_gelu" not in net.init_dict
    assert torch.equal(EvolvableMLP(3, 2, [8], random_seed=1)(torch.ones(1, 3)), net(torch.ones(1, 3)))
    assert EvolvableLSTM(3, 8, 2, dropout=0.1).clone().spec()["hidden_state_size"] == 8


def test_noise_of_one_agent_is_its_columns() -> None:
    seen, acted = {"a_0": OBS, "b_0": OBS}, {"a_0": BOX, "b_0": spaces.Box(-1, 1, (1,))}
    teams = [MADDPG(seen, acted, seed=1, vect_noise_dim=3) for _ in range(3)]
    whole = teams[0].action_noise()
    assert whole.shape == (3, 3)
    np.testing.assert_array_equal(teams[1].action_noise("a_0"), whole[:, :2])
    np.testing.assert_array_equal(teams[2].action_noise(agent_id="b_0"), whole[:, 2:])


def test_attributes_and_optimizers_one_by_one() -> None:
    agent = DDPG(OBS, BOX, seed=1)
    names = agent.inspect_attributes(agent, input_args_only=True)
    assert {"lr_actor", "gamma", "index"} <= set(names)
    assert not {"fitness", "scores", "algo"} & set(names)
    before = agent.actor_optimizer, agent.critic_optimizer
    agent.reinit_optimizers(next(o for o in agent.registry.optimizers if o.name == "critic_optimizer"))
    assert agent.actor_optimizer is before[0]
    assert agent.critic_optimizer is not before[1]
    assert agent.preprocess_observation(observation=np.zeros(3)).shape == (1, 3)
    with pytest.raises(TypeError, match="latents"):
        agent.actor.forward_head(latents=torch.zeros(1, 64))
