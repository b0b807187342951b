"""GRPO and its kin, PPO, REINFORCE, DPO and SFT of language policies, from their papers, in plain torch and float64.

Each function makes all optimiser steps of one iteration of one member. Options have the names of the algorithms'
arguments, and no defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from plain_language import Adapter, Decoder, Row, own_tokens
from torch import Tensor
from torch.nn import functional as F

Options = dict[str, Any]


class Policy:
    """An adapter that learns by AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101), and the one it began with."""

    def __init__(self, adapter: Adapter, lr: float, o: Options) -> None:
        self.now = {name: value.detach().clone().requires_grad_() for name, value in adapter.items()}
        self.first = {name: value.detach().clone() for name, value in adapter.items()}
        self.lr, self.norm, self.schedule = lr, o["max_grad_norm"], o["lr_schedule"]
        self.adamw = torch.optim.AdamW(self.now.values(), lr=lr, weight_decay=o["weight_decay"])

    def step(self, loss: Tensor, progress: float) -> None:
        """One step at this share of the budget."""
        self.adamw.zero_grad()
        loss.backward()
        if self.norm:
            torch.nn.utils.clip_grad_norm_(self.now.values(), self.norm)
        self.adamw.param_groups[0]["lr"] = self.lr * (1 - progress if self.schedule == "linear" else 1)
        self.adamw.step()


def minibatches(rng: np.random.Generator, rows: int, o: Options) -> Iterator[np.ndarray]:
    """Rows of each optimiser step: every epoch has an order of its own, cut into batches."""
    for _ in range(o["update_epochs"]):
        order = rng.permutation(rows)
        for first in range(0, rows, o["batch_size"]):
            yield order[first : first + o["batch_size"]]


def numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def k3(log_prob: Tensor, reference: Tensor) -> Tensor:
    """The estimate of KL(π ‖ π_ref) of arXiv:2402.03300, equation 4."""
    return (reference - log_prob).exp() - (reference - log_prob) - 1


# --- GRPO ------------------------------------------------------------------------------------------------------------


def group_advantages(rewards: np.ndarray, o: Options) -> list[float]:
    """Of each completion against its group: arXiv:2402.03300, section 4.1.2; arXiv:2503.20783, equation 3."""
    found = []
    for group in rewards:
        spread = np.std(group, ddof=1) + 1e-8 if o["adv_norm"] == "mean_std" else 1.0
        found += [0.0 if len(set(group)) == 1 else float((r - np.mean(group)) / spread) for r in group]
    return found


def grpo(
    decoder: Decoder, policy: Policy, rows: list[Row], rewards: np.ndarray, rng: np.random.Generator, progress: float,
    o: Options,
) -> int:  # fmt: skip
    """Equation 3 of arXiv:2402.03300, and what DAPO, Dr. GRPO, GSPO and CISPO change of it; how many steps."""
    advantage, temperature, steps = group_advantages(rewards, o), o["temperature"], 0
    counts = [row.ended or not o["mask_truncated"] for row in rows]
    with torch.no_grad():
        old = decoder.log_probs(policy.now, rows, temperature)
        reference = decoder.log_probs(policy.first, rows, temperature)
    for batch in minibatches(rng, len(rows), o):
        learned = [int(k) for k in batch if counts[k]]
        if not learned or (o["beta"] == 0 and not any(advantage[k] for k in learned)):
            continue  # no gradient: no step
        log_prob = decoder.log_probs(policy.now, [rows[k] for k in learned], temperature)
        terms, lengths = [], []
        for now, k in zip(log_prob, learned, strict=True):
            at = torch.tensor([p for p, own in enumerate(rows[k].own) if own])
            now, before, first = now[at], old[k][at], reference[k][at]
            a, low, high = advantage[k], 1 - o["clip_coef"], 1 + o["clip_coef_high"]
            if o["objective"] == "cispo":  # arXiv:2506.13585, equation 4
                gain = (now - before).exp().clamp(max=high).detach() * a * now
            else:
                ratio = (now - before).exp()
                if o["objective"] == "sequence":  # arXiv:2507.18071, equation 7
                    ratio = (now - before).mean().exp().expand(len(at))
                gain = torch.minimum(ratio * a, ratio.clamp(low, high) * a)
            terms.append(gain - o["beta"] * k3(now, first))
            lengths.append(len(at))
        if o["normalisation"] == "token":  # arXiv:2503.14476, equation 12
            loss = -torch.cat(terms).sum() / sum(lengths)
        elif o["normalisation"] == "sequence":
            loss = -torch.stack([term.mean() for term in terms]).mean()
        else:  # arXiv:2503.20783, section 3.2
            loss = -torch.cat(terms).sum() / len(terms) / o["max_output_tokens"]
        policy.step(loss, progress)
        steps += 1
    return steps


# --- PPO -------------------------------------------------------------------------------------------------------------


def turns_of(own: Sequence[bool]) -> list[list[int]]:
    """Places of each unbroken run of the policy's own tokens."""
    found: list[list[int]] = []
    for place, mine in enumerate(own):
        if mine and (place == 0 or not own[place - 1]):
            found.append([])
        if mine:
            found[-1].append(place)
    return found


def gae(rewards: list[float], values: list[float], gamma: float, decay: float) -> list[float]:
    """Equation 16 of arXiv:1506.02438 as a sum: Σ_l (γ λ)^l δ_{t+l}, of actions that end with the last one."""
    ahead = [*values[1:], 0.0]
    delta = [r + gamma * after - v for r, after, v in zip(rewards, ahead, values, strict=True)]
    return [sum((gamma * decay) ** k * d for k, d in enumerate(delta[t:])) for t in range(len(delta))]


def standardised(values: list[list[float]]) -> list[list[float]]:
    """Over all numbers of all rows."""
    flat = np.concatenate([np.asarray(row) for row in values])
    return [list((np.asarray(row) - flat.mean()) / (flat.std() + 1e-8)) for row in values]


def ppo(
    decoder: Decoder, policy: Policy, critic: Policy, rows: list[Row], rewards: list[list[float]],
    rng: np.random.Generator, progress: float, o: Options,
) -> int:  # fmt: skip
    """Ouyang et al. 2022, arXiv:2203.02155, equation 2 without its pretraining term, by arXiv:1707.06347.

    The reward of a token is what the environment gives for it less β (log π − log π_ref). rewards: by row, of its own
    tokens. An action is a token or, with granularity "turn", a run of them: its value is that before its first token.
    """
    temperature, steps = o["temperature"], 0
    with torch.no_grad():
        old = decoder.log_probs(policy.now, rows, temperature)
        reference = decoder.log_probs(policy.first, rows, temperature)
        values = decoder.values(critic.now, rows)
    advantages, returns = [], []
    for k, row in enumerate(rows):
        at = [p for p, own in enumerate(row.own) if own]
        each = {p: r - o["beta"] * float(old[k, p] - reference[k, p]) for p, r in zip(at, rewards[k], strict=True)}
        runs = turns_of(row.own) if o["granularity"] == "turn" else [[p] for p in at]
        v = [float(values[k, run[0]]) for run in runs]
        a = gae([sum(each[p] for p in run) for run in runs], v, o["gamma"], o["gae_lambda"])
        advantages.append([a[i] for i, run in enumerate(runs) for _ in run])
        # A turn's value is learned at its first token.
        returns.append([a[i] + v[i] if p == run[0] else math.nan for i, run in enumerate(runs) for p in run])
    if o["adv_norm"]:
        advantages = standardised(advantages)
    for batch in minibatches(rng, len(rows), o):
        chosen = [rows[k] for k in batch]
        log_prob, value = decoder.log_probs(policy.now, chosen, temperature), decoder.values(critic.now, chosen)
        gains, errors = [], []
        for i, k in enumerate(batch):
            at = torch.tensor([p for p, own in enumerate(rows[k].own) if own])
            ratio, a = (log_prob[i][at] - old[k][at]).exp(), numbers(advantages[k])
            gains.append(torch.minimum(ratio * a, ratio.clamp(1 - o["clip_coef"], 1 + o["clip_coef"]) * a))
            wanted, now, before = numbers(returns[k]), value[i][at], values[k][at]
            wanted = torch.where(wanted.isnan(), before, wanted)
            error = (now - wanted).square()
            if o["vf_clip"] is not None:
                near = before + (now - before).clamp(-o["vf_clip"], o["vf_clip"])
                error = torch.maximum(error, (near - wanted).square())
            errors.append(0.5 * error)
        policy.step(-torch.cat(gains).mean(), progress)
        critic.step(torch.cat(errors).mean(), progress)
        steps += 1
    return steps


# --- REINFORCE -------------------------------------------------------------------------------------------------------


def reinforce(
    decoder: Decoder, policy: Policy, rows: list[Row], rewards: np.ndarray, rng: np.random.Generator, progress: float,
    o: Options,
) -> int:  # fmt: skip
    """−A log π + β KL, the mean over tokens (Williams 1992), A by `baseline`.

    "rloo": a reward less the mean of the others of its prompt (arXiv:2402.14740, equation 8); "batch": γ^(tokens to the
    end) times the reward, standardised over all tokens.
    """
    temperature, steps = o["temperature"], 0
    lengths, flat = [len(row.completion) for row in rows], rewards.flatten()
    if o["baseline"] == "rloo":
        group = rewards.shape[1]
        others = [(rewards[k // group].sum() - r) / (group - 1) for k, r in enumerate(flat)]
        advantages = [[r - other] * n for r, other, n in zip(flat, others, lengths, strict=True)]
    else:
        advantages = standardised(
            [[r * o["gamma"] ** (n - 1 - t) for t in range(n)] for r, n in zip(flat, lengths, strict=True)]
        )
    with torch.no_grad():
        reference = decoder.log_probs(policy.first, rows, temperature)
    for batch in minibatches(rng, len(rows), {**o, "update_epochs": 1}):
        if o["beta"] == 0 and not any(any(advantages[k]) for k in batch):
            continue
        log_prob = decoder.log_probs(policy.now, [rows[k] for k in batch], temperature)
        terms = []
        for now, k in zip(log_prob, batch, strict=True):
            at = torch.tensor([p for p, own in enumerate(rows[k].own) if own])
            terms.append(-numbers(advantages[k]) * now[at] + o["beta"] * k3(now[at], reference[k][at]))
        policy.step(torch.cat(terms).mean(), progress)
        steps += 1
    return steps


# --- given texts -----------------------------------------------------------------------------------------------------


def dpo(decoder: Decoder, policy: Policy, pairs: list[tuple[Row, Row]], progress: float, o: Options) -> int:
    """Rafailov et al. 2023, arXiv:2305.18290, equation 7; with `label_smoothing` (Mitchell 2023) and the term
    −α log π(y_w) / |y_w| (arXiv:2404.19733, equation 1)."""
    steps = 0
    for first in range(0, len(pairs), o["batch_size"]):
        losses = []
        for pair in pairs[first : first + o["batch_size"]]:
            won, lost = decoder.log_probs(policy.now, pair).sum(-1)
            won_first, lost_first = decoder.log_probs(policy.first, pair).detach().sum(-1)
            z = o["beta"] * ((won - won_first) - (lost - lost_first))
            loss = -(1 - o["label_smoothing"]) * F.logsigmoid(z) - o["label_smoothing"] * F.logsigmoid(-z)
            losses.append(loss - o["nll_alpha"] * won / len(pair[0].completion))
        policy.step(torch.stack(losses).mean(), progress)
        steps += 1
    return steps


def sft(decoder: Decoder, policy: Policy, rows: list[Row], progress: float, o: Options) -> int:
    """−log π of the completions' tokens, of which every one counts alike (arXiv:2203.02155, section 3.1)."""
    steps = 0
    for first in range(0, len(rows), o["batch_size"]):
        batch = rows[first : first + o["batch_size"]]
        policy.step(-decoder.log_probs(policy.now, batch).sum() / own_tokens(batch).sum(), progress)
        steps += 1
    return steps
