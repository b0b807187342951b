"""Proximal policy optimisation of language models, with a critic on a separate adapter (Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor

from agilerl.algorithms.base.declared import COMPLETIONS, hp
from agilerl.algorithms.base.registry import HyperparameterConfig
from agilerl.algorithms.base.schedules import Schedule
from agilerl.core import foreign
from agilerl.core.ranges import Count, CountOrZero, Fraction, NonNegative, Positive
from agilerl.core.rng import Purpose, seeds
from agilerl.engine.protocol import UpdateResult
from agilerl.errors import AlgorithmError, unknown_choice
from agilerl.language.algorithms.base import Backend
from agilerl.language.algorithms.batches import TextBatch
from agilerl.language.algorithms.generation import CompletionAlgorithm, token_rewards
from agilerl.language.engines import AdapterEngine
from agilerl.language.networks import AdapterNetwork
from agilerl.language.scoring import Texts
from agilerl.language.settings import AdapterSettings, ModelName
from agilerl.losses import completions as losses


class LLMPPO(CompletionAlgorithm):
    """PPO on rewards of completions, with a value of every state, per token or per turn.

    The reward of a completion is given at its last token. The KL divergence from the initial policy is subtracted per
    token: −β (log π − log π_ref).

    Args:
        granularity: unit of an action: a "token", or a "turn", all tokens between two replies of an environment.
        batch_size: completions per optimiser step. lr_actor, lr_critic: learning rates of AdamW. weight_decay: weight
            decay of AdamW.
        lr_schedule: "constant", or "linear" to 0 over the budget.
        beta: weight of the KL divergence. gamma, gae_lambda: parameters of the advantages (arXiv:1506.02438).
        clip_coef: ε of the ratio. vf_clip: maximum change of a value per iteration; None: unlimited.
        adv_norm: whether advantages are standardised over all generated tokens.
        max_grad_norm: gradient-norm clip; 0 disables it. update_epochs: passes over the completions.
        group_size: completions per prompt. temperature: sampling temperature, also used in the loss.
        max_output_tokens, min_output_tokens: length of a completion. top_k, top_p: see `language.generate.Sampling`.

    See `LLMAlgorithm` for the other arguments.
    """

    experience = COMPLETIONS
    compares_groups = False
    critic: AdapterNetwork

    def __init__(
        self,
        actor_network: Any = None,
        model_name: Annotated[str | Path | None, hp(values=ModelName)] = None,
        tokenizer: foreign.Tokenizer | None = None,
        lora_config: Annotated[Any, hp(values=AdapterSettings)] = None,
        index: int = 0,
        hp_config: HyperparameterConfig | None = None,
        granularity: Annotated[Literal["token", "turn"], hp()] = "token",
        batch_size: Annotated[Count, hp()] = 64,
        lr_actor: Annotated[Positive, hp()] = 5e-5,
        lr_critic: Annotated[Positive, hp()] = 5e-5,
        weight_decay: Annotated[NonNegative, hp()] = 0.0,
        lr_schedule: Annotated[Schedule, hp()] = "constant",
        beta: Annotated[NonNegative, hp()] = 0.01,
        gamma: Annotated[Fraction, hp()] = 1.0,
        gae_lambda: Annotated[Fraction, hp()] = 1.0,
        clip_coef: Annotated[Positive, hp()] = 0.2,
        vf_clip: Annotated[Positive | None, hp()] = None,
        adv_norm: Annotated[bool, hp()] = True,
        max_grad_norm: Annotated[NonNegative, hp()] = 0.1,
        update_epochs: Annotated[Count, hp()] = 1,
        group_size: Annotated[Count, hp()] = 1,
        temperature: Annotated[Positive, hp()] = 1.0,
        max_output_tokens: Annotated[Count, hp()] = 64,
        min_output_tokens: Annotated[CountOrZero, hp()] = 0,
        top_k: Annotated[CountOrZero, hp()] = 0,
        top_p: Annotated[Positive, hp()] = 1.0,
        micro_batch_size: Annotated[Count | None, hp()] = None,
        rollout_backend: Annotated[Backend, hp()] = "prefix-shared",
        pad_token_id: int | None = None,
        pad_token: str | None = None,
        mut: str | None = None,
        device: str | torch.device = "cpu",
        accelerator: Any = None,
        wrap: bool = True,
        *,
        seed: int | None = None,
        max_model_len: int | None = None,
        use_vllm: bool = False,
        vllm_config: object = None,
        gradient_checkpointing: bool = False,
        use_liger_loss: bool = False,
        micro_batch_size_per_gpu: int | None = None,
    ) -> None:
        super().__init__(
            actor_network, model_name, tokenizer, lora_config, index, hp_config, pad_token_id, pad_token,
            micro_batch_size, rollout_backend, device, accelerator, seed, lr_schedule,
        )  # fmt: skip
        self.take_published(
            max_model_len, use_vllm, vllm_config, gradient_checkpointing, use_liger_loss, micro_batch_size_per_gpu
        )
        if granularity not in ("token", "turn"):
            raise AlgorithmError(f"{self.algo}: {unknown_choice('granularity', str(granularity), ('token', 'turn'))}")
        self.granularity, self.batch_size, self.lr_actor, self.lr_critic = granularity, batch_size, lr_actor, lr_critic
        self.weight_decay, self.beta, self.gamma, self.gae_lambda = weight_decay, beta, gamma, gae_lambda
        self.clip_coef, self.vf_clip, self.adv_norm, self.max_grad_norm = clip_coef, vf_clip, adv_norm, max_grad_norm
        self.update_epochs, self.group_size, self.temperature = update_epochs, group_size, temperature
        self.max_output_tokens, self.min_output_tokens = max_output_tokens, min_output_tokens
        self.top_k, self.top_p, self.mut = top_k, top_p, mut
        self.sampling()  # validates the lengths
        critic_seed = int(seeds(self.seed, Purpose.INITIAL_WEIGHTS, 1, generation=2)[0])
        self.critic = AdapterNetwork(
            self.base, self.actor.config, True, device=self.base.device, random_seed=critic_seed
        )
        self.register_adapter("actor", "reference", "optimizer", "lr_actor", weight_decay, policy=True)
        self.register_adapter("critic", None, "optimizer_critic", "lr_critic", weight_decay)

    def update_hyperparameters(self) -> dict[str, float]:
        rates = {"lr_actor": self.scheduled(self.lr_actor), "lr_critic": self.scheduled(self.lr_critic)}
        return {**rates, **self._numbers("beta", "gamma", "gae_lambda", "clip_coef", "temperature")}

    def update_options(self) -> tuple[Any, ...]:
        return (
            self.granularity, self.batch_size, self.group_size, self.update_epochs, self.max_output_tokens,
            self.max_grad_norm, self.beta > 0, self.vf_clip, self.adv_norm,
        )  # fmt: skip

    def arrange(
        self, engine: Any, texts: Texts, rewards: Tensor, rngs: Sequence[np.random.Generator]
    ) -> Iterator[TextBatch]:
        """Yield `update_epochs` passes over the texts; rewards [N, B, G] per completion, or [N, R, T] per token."""
        mask = texts.completion_mask
        old = self.scored(engine, engine.network("actor"), texts)
        values = self.scored(engine, engine.network("critic"), texts).masked_fill(~mask, 0)
        each, width = token_rewards(rewards, mask).to(values.dtype), (-1, 1)
        beta, gamma, decay = (engine.outer(engine.hp[name]).view(width) for name in ("beta", "gamma", "gae_lambda"))
        if self.beta > 0:
            reference = self.scored(engine, engine.target("actor"), texts)
            each = each - beta.unsqueeze(-1) * losses.log_ratio(old, reference, mask)
        estimate = losses.token_advantages if self.granularity == "token" else losses.turn_advantages
        advantage, returns = estimate(each, values, mask, gamma, decay)
        if self.adv_norm:
            advantage = losses.whitened(advantage, mask.to(advantage.dtype), mean_of=engine.ranks.mean)
        whole = TextBatch(texts, self.counted(texts), advantage, old, None, returns, values)
        yield from self.minibatches(engine, whole, rngs, "token", True)

    def update(self, engine: AdapterEngine, batch: TextBatch) -> UpdateResult:
        """Perform one policy step on the clipped surrogate (arXiv:1707.06347, equation 7) and one critic step on
        ½ (V − return)², or on the larger of the clipped and unclipped loss."""
        hp, total, of_values, divergence = engine.hp, torch.zeros(()), torch.zeros(()), torch.zeros(())
        policy, critic = engine.network("actor"), engine.network("critic")
        clip = hp["clip_coef"]
        clip = clip.unsqueeze(-1) if clip.dim() else clip
        for part in batch.parts(self.micro_batch_size):
            mask = part.texts.completion_mask
            assert part.advantage is not None
            assert part.old is not None
            assert part.returns is not None
            assert part.values is not None
            log_prob = policy(part.texts, hp["temperature"])
            ratios = losses.log_ratio(log_prob, part.old, mask)
            surrogate = losses.clipped_surrogate(ratios.exp(), part.advantage, clip, clip)
            loss = (part.weight * surrogate).sum((-2, -1))
            engine.accumulate(loss)
            value = critic(part.texts)
            error = (value - part.returns).square()
            if self.vf_clip is not None:
                near = part.values + (value - part.values).clamp(-self.vf_clip, self.vf_clip)
                error = torch.maximum(error, (near - part.returns).square())
            value_loss = (part.weight * 0.5 * error.masked_fill(~mask, 0)).sum((-2, -1))
            engine.accumulate(value_loss)
            kl = (part.weight * (ratios.exp() - 1 - ratios)).sum((-2, -1))
            total, of_values = total + loss.detach(), of_values + value_loss.detach()
            divergence = divergence + kl.detach()
        norm = self.max_norm(total)
        engine.step("optimizer", norm, batch.live)
        engine.step("optimizer_critic", norm, batch.live)
        return UpdateResult(of_values, total, kl=divergence)
