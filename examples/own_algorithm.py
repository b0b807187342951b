"""A complete algorithm in one file: Munchausen DQN (Vieillard et al. 2020, arXiv:2007.14430).

    agilerl train CartPole-v1 --algo MunchausenDQN --import examples/own_algorithm.py
    agilerl resume RUN --import examples/own_algorithm.py

It trains fused with the rest of its population, evolves (alpha and temperature too), resumes and exports; nothing else
in the package knows of it.
"""

from __future__ import annotations

from typing import Annotated, Any

import torch

from agilerl.algorithms import DQN, register
from agilerl.algorithms.base.declared import hp
from agilerl.engine.protocol import TransitionBatch, UpdateEngine, UpdateResult
from agilerl.losses.td import squared_td_error, take
from agilerl.ranges import Count, Fraction, Positive, PositiveFraction


@register
class MunchausenDQN(DQN):
    """DQN whose reward is raised by the scaled log-probability of the action taken, under the softmax of its values.

    Args:
        alpha: weight of the log-probability, 0 for soft Q-learning. temperature: τ of the softmax.
        floor: lowest log-probability that counts, times the temperature (l₀ of the paper).
    """

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        *args: Any,
        batch_size: Annotated[Count, hp()] = 64,
        lr: Annotated[Positive, hp()] = 1e-3,
        learn_step: Annotated[Count, hp()] = 4,
        gamma: Annotated[Fraction, hp()] = 0.99,
        tau: Annotated[PositiveFraction, hp()] = 0.01,
        alpha: Annotated[Fraction, hp()] = 0.9,
        temperature: Annotated[Positive, hp()] = 0.03,
        floor: float = -1.0,
        **kwargs: Any,
    ) -> None:
        usual = {"batch_size": batch_size, "lr": lr, "learn_step": learn_step, "gamma": gamma, "tau": tau}
        super().__init__(observation_space, action_space, *args, **usual, **kwargs)
        self.alpha, self.temperature, self.floor = alpha, temperature, floor

    def update_hyperparameters(self) -> dict[str, float]:
        return {**super().update_hyperparameters(), "alpha": self.alpha, "temperature": self.temperature}

    def update(self, engine: UpdateEngine, batch: TransitionBatch) -> UpdateResult:
        """Equation 2 of the paper, with the policy and the values of the target network."""
        own = engine.hp
        with torch.no_grad():
            target = engine.target("actor")
            after, before = target(batch.next_obs), target(batch.obs)
            heat = own["temperature"].unsqueeze(-1) if own["temperature"].dim() else own["temperature"]
            scaled = after if batch.next_mask is None else after.masked_fill(~batch.next_mask, float("-inf"))
            soft_value = own["temperature"] * torch.logsumexp(scaled / heat, -1)
            log_policy = own["temperature"] * take((before / heat).log_softmax(-1), batch.action)
            reward = batch.reward + own["alpha"] * log_policy.clamp(min=self.floor, max=0)
            goal = reward + batch.discounts(own["gamma"]) * soft_value
        values, ran = engine.forward("actor", batch.obs)
        loss, grad, error = squared_td_error(values, batch.action, goal, batch.weight)
        engine.descend("optimizer", ran, grad)
        engine.track("actor", own["tau"])
        return UpdateResult(loss, priorities=error.abs())
