"""Thirty training manifests with the published keys, of both generations of names; the values are ours."""

from __future__ import annotations

from typing import Any

RUN = {
    "CHANNELS_LAST": False, "NUM_ENVS": 8, "MAX_STEPS": 20_000, "TARGET_SCORE": 100.0, "TOURN_SIZE": 2, "ELITISM": True,
    "POP_SIZE": 4, "EVO_STEPS": 1_000, "EVAL_STEPS": None, "EVAL_LOOP": 1, "WANDB": True,
}  # fmt: skip
EPISODES = {"CHANNELS_LAST": False, "EPISODES": 500, "TARGET_SCORE": 90.0, "TOURN_SIZE": 2, "ELITISM": True,
            "POP_SIZE": 4, "EVO_EPOCHS": 20, "WANDB": False}  # fmt: skip
REPLAY = {"BATCH_SIZE": 64, "GAMMA": 0.99, "MEMORY_SIZE": 10_000, "LEARN_STEP": 4, "TAU": 0.005}
NOISE = {"O_U_NOISE": True, "EXPL_NOISE": 0.1, "MEAN_NOISE": 0.0, "THETA": 0.15, "DT": 0.01, "POLICY_FREQ": 2}
RATES = {"LR_ACTOR": 1e-4, "LR_CRITIC": 1e-3}
ON_POLICY = {
    "BATCH_SIZE": 128, "LR": 3e-4, "LEARN_STEP": 1_024, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "ACTION_STD_INIT": 0.6,
    "CLIP_COEF": 0.2, "ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "TARGET_KL": None, "UPDATE_EPOCHS": 4,
}  # fmt: skip
BANDIT = {"BATCH_SIZE": 64, "LR": 1e-3, "GAMMA": 1.0, "LAMBDA": 1.0, "REG": 6.25e-4, "MEMORY_SIZE": 10_000,
          "LEARN_STEP": 2}  # fmt: skip
LANGUAGE = {"BATCH_SIZE": 4, "LR": 5e-6, "MAX_GRAD_NORM": 0.1, "UPDATE_EPOCHS": 1, "TOURN_SIZE": 2, "ELITISM": True,
            "POP_SIZE": 2, "EVAL_LOOP": 1, "CALC_POSITION_EMBEDDINGS": True, "REDUCE_MEMORY_PEAK": False}  # fmt: skip
SAMPLED = {**LANGUAGE, "BETA": 1e-3, "CLIP_COEF": 0.2, "TEMPERATURE": 0.9, "MAX_OUTPUT_TOKENS": 64,
           "MIN_OUTPUT_TOKENS": None, "MAX_MODEL_LEN": 1_024, "COSINE_lR_SCHEDULER": None,
           "USE_VLLM": False}  # fmt: skip
GROUPS = {**SAMPLED, "GROUP_SIZE": 4, "USE_LIGER_LOSS": False, "USE_MEMORY_EFFICIENT_PARAMS": True}
CHANCES = {"NO_MUT": 0.4, "ARCH_MUT": 0.2, "NEW_LAYER": 0.2, "PARAMS_MUT": 0.2, "ACT_MUT": 0.2, "RL_HP_MUT": 0.2,
           "MUT_SD": 0.1, "RAND_SEED": 42}  # fmt: skip
RATE = {"MIN_LR": 1e-4, "MAX_LR": 1e-2}
BATCH = {"MIN_BATCH_SIZE": 8, "MAX_BATCH_SIZE": 512}
STEP = {"MIN_LEARN_STEP": 1, "MAX_LEARN_STEP": 16}
ROLLOUT = {**CHANCES, **RATE, **BATCH, "MIN_LEARN_STEP": 256, "MAX_LEARN_STEP": 8_192, "MIN_ENT_COEF": 1e-3,
           "MAX_ENT_COEF": 0.1}  # fmt: skip
CHOSEN = {**CHANCES, **RATE, **BATCH, "RL_HP_SELECTION": ["lr", "batch_size"]}
OF_ACTORS = {**CHANCES, **BATCH, **STEP, "MIN_LR_ACTOR": 1e-4, "MAX_LR_ACTOR": 1e-2, "MIN_LR_CRITIC": 1e-4,
             "MAX_LR_CRITIC": 1e-2}  # fmt: skip
OF_TEXT = {"NO_MUT": 0.1, "RL_HP_MUT": 0.6, "MUT_SD": 0.1, "RAND_SEED": 42, "MIN_LR": 1e-7, "MAX_LR": 1e-5,
           "MIN_BETA": 1e-4, "MAX_BETA": 1e-2, "MIN_GROUP_SIZE": 4, "MAX_GROUP_SIZE": 12}  # fmt: skip
DENSE = {"hidden_size": [64], "activation": "ReLU", "min_mlp_nodes": 16, "max_mlp_nodes": 256, "layer_norm": True}
HEAD = {**DENSE, "output_activation": None, "min_hidden_layers": 1, "max_hidden_layers": 2, "output_vanish": True}
NET = {"latent_dim": 64, "encoder_config": DENSE, "head_config": HEAD}
PIXELS = {"latent_dim": 128, "encoder_config": {"channel_size": [32, 16], "kernel_size": [8, 4], "stride_size": [4, 2],
          "activation": "ReLU"}, "head_config": {"hidden_size": [64]}}  # fmt: skip
MEMORY = {"latent_dim": 64, "encoder_config": {"hidden_state_size": 64, "num_layers": 1, "max_seq_len": 64},
          "head_config": {"hidden_size": [64]}}  # fmt: skip
FLAT = {"arch": "mlp", "hidden_size": [64, 64]}
SPEAKERS = "pettingzoo.mpe.simple_speaker_listener_v4"


def older(algo: str, env: str | None, mutation: Any, network: Any, *parts: Any, top: Any = None, **keys: Any) -> Any:
    """INIT_HP, MUTATION_PARAMS and NET_CONFIG."""
    init_hp = {"ENV_NAME": env, "ALGO": algo} if env else {"ALGO": algo}
    for part in (*parts, keys):
        init_hp |= part
    sections = {"INIT_HP": init_hp, "MUTATION_PARAMS": mutation, "NET_CONFIG": network, **(top or {})}
    return {name: section for name, section in sections.items() if section is not None}


def newer(name: str, environment: Any, network: Any, bounds: Any, *, training: Any = None, **keys: Any) -> Any:
    """The sections of a manifest, with keys that this library does not have."""
    chances = {"no_mut": 0.4, "arch_mut": 0.2, "new_layer": 0.2, "params_mut": 0.2, "act_mut": 0.0, "rl_hp_mut": 0.2}
    return {
        "algorithm": {"name": name, **keys},
        "environment": environment,
        "mutation": {"probabilities": chances, "rl_hp_selection": bounds, "mutation_sd": 0.1, "rand_seed": 42,
                     "super_param_mut": True, "regrama_param_mut": False},
        "network": network,
        "selection_strategy": {"tournament_size": 2, "elitism": True},
        "training": {"max_steps": 20_000, "pop_size": 4, "evo_steps": 1_000, "eval_loop": 1, **(training or {})},
    }  # fmt: skip


LR = {"lr": {"min": 1e-4, "max": 1e-2}}
TASK = {"env_type": "rollout", "dataset": "user/numbers", "columns": {"nums": "question"}, "rubric_name": "RUBRIC",
        "rubric_file_path": "reward.py", "prompt_template": {"user_1": "{question}"}, "max_reward": 2.0,
        "train_test_split": 0.8}  # fmt: skip
MODEL = {"pretrained_model_name_or_path": "user/model", "max_context_length": 512,
         "lora_config": {"lora_r": 16, "lora_alpha": 64, "target_modules": ["q_proj"], "lora_dropout": 0.05,
                         "task_type": "CAUSAL_LM"}}  # fmt: skip

MANIFESTS: dict[str, dict[str, Any]] = {
    "dqn": older("DQN", "LunarLander-v3", {**CHANCES, **RATE, **BATCH, **STEP}, NET, RUN, REPLAY, LR=1e-3, DOUBLE=False,
                 CUDAGRAPHS=False, LEARNING_DELAY=0, EPS_START=1.0, EPS_END=0.1, EPS_DECAY=0.99),
    "dqn, flat network": older("DQN", "CartPole-v1", CHOSEN, FLAT, EPISODES, REPLAY, LR=1e-3, DOUBLE=True),
    "rainbow": older("Rainbow DQN", "LunarLander-v3", {**CHANCES, **RATE, **BATCH, **STEP}, NET, RUN, REPLAY, LR=1e-4,
                     N_STEP=3, PER=False, ALPHA=0.6, BETA=0.4, PRIOR_EPS=1e-6, NOISE_STD=0.5, NUM_ATOMS=51,
                     V_MIN=-200.0, V_MAX=200.0, LEARNING_DELAY=1_000),
    "cqn": older("CQN", "CartPole-v1", CHOSEN, FLAT, EPISODES, REPLAY, LR=1e-3, DOUBLE=True, POLICY_FREQ=2,
                 DATASET="data/cartpole/cartpole_v1.1.0.h5"),
    "ddpg": older("DDPG", "LunarLanderContinuous-v3", OF_ACTORS, NET, RUN, REPLAY, NOISE, RATES, MAX_ACTION=1,
                  MIN_ACTION=-1, LEARNING_DELAY=1_000, SHARE_ENCODERS=True),
    "ddpg, simba": older("DDPG", "HalfCheetah-v5", OF_ACTORS,
                         {"latent_dim": 64, "simba": True, "encoder_config": {"hidden_size": 128, "num_blocks": 2},
                          "head_config": HEAD}, RUN, REPLAY, NOISE, RATES),
    "td3": older("TD3", "LunarLanderContinuous-v3", OF_ACTORS, NET, RUN, REPLAY, NOISE, RATES, SHARE_ENCODERS=True),
    "ppo": older("PPO", "LunarLanderContinuous-v3", ROLLOUT, {**NET, "squash_output": False}, RUN, ON_POLICY,
                 SHARE_ENCODERS=True, USE_ROLLOUT_BUFFER=True),
    "ppo, images": older("PPO", "ALE/Pong-v5", ROLLOUT, PIXELS, RUN, ON_POLICY, CHANNELS_LAST=True,
                         USE_ROLLOUT_BUFFER=True, SHARE_ENCODERS=True),
    "ppo, recurrent": older("PPO", "Pendulum-v1", ROLLOUT, MEMORY, RUN, ON_POLICY, RECURRENT=True, MAX_SEQ_LEN=32,
                            USE_ROLLOUT_BUFFER=True, SHARE_ENCODERS=True),
    "ppo, dictionaries": older("PPO", "Blackjack-v1", ROLLOUT,
                               {"encoder_config": {"latent_dim": 32, "mlp_config": {"hidden_size": [32]}},
                                "latent_dim": 32, "head_config": {"hidden_size": [16]}}, RUN, ON_POLICY,
                               SHARE_ENCODERS=True),
    "maddpg": older("MADDPG", SPEAKERS, {**CHOSEN, **STEP}, {"arch": "mlp", "h_size": [64, 64]}, EPISODES, REPLAY,
                    LR=0.01, MAX_ACTION=1, MIN_ACTION=-1, top={"DISTRIBUTED_TRAINING": False}),
    "matd3": older("MATD3", SPEAKERS, OF_ACTORS, NET, RUN, REPLAY, NOISE, RATES, TORCH_COMPILER="default",
                   top={"DISTRIBUTED_TRAINING": False}),
    "ippo": older("IPPO", SPEAKERS, ROLLOUT, NET, RUN, ON_POLICY, TORCH_COMPILE="default",
                  top={"DISTRIBUTED_TRAINING": False}),
    "ippo, images": older("IPPO", "pettingzoo.butterfly.cooperative_pong_v5", ROLLOUT, PIXELS, RUN, ON_POLICY,
                          CHANNELS_LAST=True, top={"DISTRIBUTED_TRAINING": False}),
    "neural ucb": older("NeuralUCB", "IRIS", CHOSEN, {"encoder_config": {"hidden_size": [128]}}, EPISODES, BANDIT,
                        UCI_REPO_ID=53),
    "neural ts": older("NeuralTS", "IRIS", CHOSEN, {"arch": "mlp", "h_size": [128]}, EPISODES, BANDIT, UCI_REPO_ID=53),
    "grpo": older("GRPO", None, OF_TEXT, None, GROUPS),
    "gspo": older("GSPO", None, OF_TEXT, None, GROUPS, IMPORTANCE_SAMPLING_LEVEL="trajectory"),
    "cispo": older("CISPO", None, OF_TEXT, None, GROUPS, ADV_NORM="mean_std", LOSS_TYPE="cispo", FILTER_ZERO_ADV=False,
                   USE_KL_ADVANTAGE_SHAPING=False),
    "language ppo": older("LLMPPO", None, OF_TEXT, None, SAMPLED, GAMMA=0.99, VF_COEF=0.5, GAE_LAMBDA=1.0,
                          ADVANTAGE_GRANULARITY="turn"),
    "language reinforce": older("LLMREINFORCE", None, OF_TEXT, None, SAMPLED, GAMMA=0.99,
                                ADVANTAGE_GRANULARITY="turn"),
    "dpo": older("DPO", None, OF_TEXT, None, LANGUAGE, BETA=0.001, MAX_CONTEXT_LENGTH=512, SEED=42, EVO_STEPS=None,
                 USE_SEPARATE_REFERENCE_ADAPTER=True, EVALUATION_INTERVAL=200, NUM_BATCHES=None, WANDB=False,
                 WANDB_API_KEY=None, WANDB_PROJECT="AgileRL"),
    "sft": older("SFT", None, OF_TEXT, None, LANGUAGE, MAX_CONTEXT_LENGTH=512, EVALUATION_INTERVAL=10),
    "td3, newer": {**newer("TD3", {"name": "LunarLanderContinuous-v3", "num_envs": 8}, NET,
                           {"lr_actor": LR["lr"], "lr_critic": LR["lr"]}, batch_size=128, lr_actor=1e-4, lr_critic=1e-3,
                           policy_freq=2, O_U_noise=True, share_encoders=True),
                   "replay_buffer": {"max_size": 10_000}},
    "ppo, newer": newer("PPO", {"name": "ALE/Breakout-v5", "num_envs": 6}, PIXELS,
                        {**LR, "ent_coef": {"min": 1e-3, "max": 0.1}}, batch_size=128, lr=1e-3, learn_step=256,
                        target_kl=None, share_encoders=True, training={"target_score": 250.0, "eval_steps": None}),
    "dqn with a memory": {**newer("DQN", {"name": "CartPole-v1", "num_envs": 8}, {**MEMORY, "arch": "lstm"}, LR,
                                  lr=1e-3, double=False, cudagraphs=False), "replay_buffer": {"max_size": 10_000}},
    "neural ucb, newer": {**newer("NeuralUCB", {"name": "IRIS", "features": "x.csv", "targets": "y.csv"},
                                  {"latent_dim": 128, "encoder_config": {"hidden_size": [128]},
                                   "head_config": {"hidden_size": [128]}}, LR, batch_size=64, lr=1e-3, lamb=1.0,
                                  reg=6.25e-4), "replay_buffer": {"max_size": 10_000}},
    "grpo, newer": newer("GRPO", TASK, MODEL, {**LR, "beta": {"min": 1e-4, "max": 1e-2}}, batch_size=6, beta=1e-3,
                         lr=5e-6, group_size=2, use_vllm=False, calc_position_embeddings=True,
                         vllm_config={"tensor_parallel_size": 1}, training={"evaluation_interval": 5}),
    "sft, newer": newer("SFT", {"dataset": "user/texts", "response_column": "chosen"}, MODEL, LR, batch_size=16,
                        lr=5e-5, gradient_checkpointing=True, training={"evaluation_interval": 5, "num_epochs": 1}),
}  # fmt: skip
