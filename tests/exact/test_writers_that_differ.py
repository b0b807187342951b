"""Language members that differ in every hyperparameter: in one pass of their base each learns what it learns alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from agilerl.language.algorithms.scoring import example_texts, pair_texts
from agilerl.language.engines import SequentialAdapters, StackedAdapters, engines_for
from agilerl.language.scoring import Texts
from tests.differential.apart import TOLERANCE, vary
from tests.differential.language_reference import base, compare, make, member, moved, samples, written

MEMBERS = 2
THOROUGH = pytest.mark.thorough  # beside one case of completions with a critic and one without
# name -> algorithm, options, hyperparameters without effect on these texts
CASES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "GRPO": ("GRPO", {"clip_coef_high": 0.25}, ()),
    "GSPO": ("GRPO", {"variant": "gspo", "clip_coef_high": 0.25, "beta": 0.1, "update_epochs": 4}, ()),
    "CISPO": ("GRPO", {"variant": "cispo", "clip_coef_high": 0.02, "beta": 0.1}, ("clip_coef",)),
    "LLMREINFORCE": ("LLMREINFORCE", {}, ()),
    "LLMPPO": ("LLMPPO", {"gamma": 0.9, "vf_clip": 0.05}, ()),
}


def rngs() -> list[np.random.Generator]:
    return [np.random.default_rng(number) for number in range(MEMBERS)]


def learn(engine: Any, agents: list[Any], texts: Texts, rewards: Any, draws: list[np.random.Generator]) -> list[float]:
    """All optimiser steps of an iteration; the losses of the first member."""
    steps = [agents[0].update(engine, b) for b in agents[0].arrange(engine, texts, rewards, draws)]
    engine.release()
    return [float(step.loss.reshape(-1)[0]) for step in steps]


def assert_each_learns_as_alone(
    agents: list[Any], texts_of: Callable[[Any, list[Any]], Texts], rewards: Any, without_effect: tuple[str, ...] = ()
) -> None:
    """Alone is in one pass, together is in parts. Twice: the second time begins with the moments of the first."""
    names, twins = vary(agents), [agent.clone() for agent in agents]
    for twin in twins:
        twin.micro_batch_size = None
    before = twins[-1].clone()
    drawn = rngs(), rngs()
    for _ in range(2):
        (stack,) = engines_for(agents)[0]
        assert isinstance(stack, StackedAdapters)
        texts = texts_of(stack, agents)
        learn(stack, agents, texts, rewards, drawn[0])
        for number, twin in enumerate(twins):
            engine = SequentialAdapters(twin)
            assert torch.equal(texts_of(engine, [twin]).tokens[0], texts.tokens[number])
            gained = None if rewards is None else rewards[[number]]
            learn(engine, [twin], member(texts, number), gained, [drawn[1][number]])
        assert compare(agents, twins) < TOLERANCE
    results, gained = {}, None if rewards is None else rewards[[-1]]
    for name in ("", *names):
        other = results[name] = before.clone()
        if name:
            setattr(other, name, getattr(other, name) / 2)
        learn(SequentialAdapters(other), [other], member(texts, MEMBERS - 1), gained, [rngs()[-1]])
    same = [name for name in names if moved(results[name], results[""]) < 1e-9]
    assert same == list(without_effect), "hyperparameters without effect on these texts"


@pytest.mark.parametrize(
    "name", [name if name in ("GRPO", "LLMPPO") else pytest.param(name, marks=THOROUGH) for name in CASES]
)
def test_writers_learn_together_what_each_learns_alone(name: str) -> None:
    algo, options, without_effect = CASES[name]
    rates = {"lr_actor": 1e-2, "lr_critic": 2e-2} if algo == "LLMPPO" else {"lr": 1e-2}
    options = {"max_grad_norm": 0.5, "temperature": 1.2, "micro_batch_size": 7, "batch_size": 12, **rates, **options}
    if algo != "LLMREINFORCE":
        options = {"clip_coef": 0.15, "update_epochs": 1} | options
    agents = [make(algo, index, **options) for index in range(MEMBERS)]
    drawn = torch.from_numpy(np.random.default_rng(7).integers(0, 3, (MEMBERS, 6, 4)).astype(float))
    drawn[0, :5] = 1.0  # nearly all groups of the first member say nothing
    assert_each_learns_as_alone(agents, written, drawn, without_effect)


@pytest.mark.parametrize(
    ("algo", "size"), [("DPO", 3), pytest.param("DPO", 1, marks=THOROUGH), pytest.param("SFT", 3, marks=THOROUGH)]
)
def test_pairs_and_examples_are_learned_together_as_alone(algo: str, size: int) -> None:
    options = {"nll_alpha": 0.3, "label_smoothing": 0.1, "beta": 0.2} if algo == "DPO" else {}
    agents = [make(algo, i, lr=1e-2, batch_size=4, micro_batch_size=size, **options) for i in range(MEMBERS)]
    whole = (pair_texts if algo == "DPO" else example_texts)(samples(MEMBERS), base())
    numbers = {agent.index: number for number, agent in enumerate(agents)}

    def texts_of(engine: Any, some: list[Any]) -> Texts:
        rows = [numbers[agent.index] for agent in some]
        return Texts(*(x[rows] for x in (whole.tokens, whole.attention, whole.completion_mask)))

    assert_each_learns_as_alone(agents, texts_of, None)
