"""Members in one pass of their base learn what each learns alone, through PEFT and torch's own optimisers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from agilerl.errors import ConfigError
from agilerl.language.algorithms.scoring import example_texts, pair_texts
from agilerl.language.engines import SequentialAdapters, StackedAdapters, engines_for
from tests.differential.language_reference import WRITERS, base, compare, make, member, moved, samples, written

EXACT = 1e-10  # in float64, after several steps of Adam, which divides rounding by small gradients too
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("GRPO", {}),
    ("GRPO", {"variant": "dr_grpo"}),
    ("GRPO", {"variant": "dapo", "beta": 0.0, "micro_batch_size": 3}),
    ("GRPO", {"variant": "gspo"}),
    ("GRPO", {"variant": "cispo", "mask_truncated": True}),
    ("LLMREINFORCE", {}),
    ("LLMREINFORCE", {"baseline": "rloo"}),
    ("LLMPPO", {}),
    ("LLMPPO", {"granularity": "turn", "vf_clip": 0.2, "micro_batch_size": 5}),
]


def rngs(count: int) -> list[np.random.Generator]:
    return [np.random.default_rng(number) for number in range(count)]


def rewards(count: int) -> torch.Tensor:
    drawn = np.random.default_rng(7).integers(0, 3, (count, 6, 4)).astype(float)
    drawn[0, :5] = 1.0  # nearly all groups of the first member say nothing
    return torch.from_numpy(drawn)


@pytest.mark.parametrize(
    ("algo", "options"), VARIANTS, ids=lambda x: "-".join(map(str, x.values())) if isinstance(x, dict) else x
)
def test_writers_in_one_pass_learn_as_each_alone(algo: str, options: dict[str, Any]) -> None:
    rates = "lr_actor" if algo == "LLMPPO" else "lr"
    agents = [make(algo, i, **{**options, rates: 1e-2 * (i + 1), "max_grad_norm": 0.5}) for i in range(3)]
    before, twins = [agent.clone() for agent in agents], [agent.clone() for agent in agents]
    engines, name, _ = engines_for(agents)
    assert name == "fused"
    assert len(engines) == 1
    assert isinstance(engines[0], StackedAdapters)
    texts, given = written(engines[0], agents), rewards(3)
    steps = [agents[0].update(engines[0], b) for b in agents[0].arrange(engines[0], texts, given, rngs(3))]
    engines[0].release()
    for number, twin in enumerate(twins):
        alone = SequentialAdapters(twin)
        assert torch.equal(written(alone, [twin]).tokens[0], texts.tokens[number])
        own = member(texts, number)
        results = [
            twin.update(alone, b) for b in twin.arrange(alone, own, given[number : number + 1], [rngs(3)[number]])
        ]
        found = [float(r.loss) for r in results]
        live = [s for s in (float(step.loss[number]) for step in steps) if s != 0 or len(found) == len(steps)]
        np.testing.assert_allclose(live[: len(found)], found, atol=EXACT)
    assert compare(agents, twins) < EXACT
    assert moved(agents[1], before[1]) > 1e-4


@pytest.mark.parametrize("algo", ["DPO", "SFT"])
def test_pairs_and_examples_in_one_pass_are_learned_as_alone(algo: str) -> None:
    items = samples(3)
    agents = [make(algo, i, lr=1e-2 * (i + 1), batch_size=4, micro_batch_size=3 - i % 1) for i in range(3)]
    twins = [agent.clone() for agent in agents]
    lay_out = pair_texts if algo == "DPO" else example_texts
    engines, _, _ = engines_for(agents)
    for batch in agents[0].arrange(engines[0], lay_out(items, base()), None, []):
        agents[0].update(engines[0], batch)
    engines[0].release()
    for twin, own in zip(twins, items, strict=True):
        alone = SequentialAdapters(twin)
        for batch in twin.arrange(alone, lay_out([own], base()), None, []):
            twin.update(alone, batch)
    assert compare(agents, twins) < EXACT


@pytest.mark.parametrize("algo", ["GRPO", "LLMPPO"])
def test_a_mutated_weight_decay_acts_as_one_of_the_constructor(algo: str) -> None:
    given, mutated, without = make(algo, 0, weight_decay=0.5), make(algo, 0), make(algo, 0)
    mutated.weight_decay = 0.5
    agents = [given, mutated.clone(), without]
    engines, name, _ = engines_for(agents)
    assert (name, [len(engine.agents) for engine in engines]) == ("fused", [2, 1])
    for engine in engines:
        texts = written(engine, engine.agents)
        drawn = [np.random.default_rng(0) for _ in engine.agents]
        for batch in engine.agents[0].arrange(engine, texts, rewards(2)[1:].expand(len(drawn), -1, -1), drawn):
            engine.agents[0].update(engine, batch)
        engine.release()
    assert moved(given, agents[1]) < EXACT
    assert moved(given, without) > 1e-6
    mutated.reinit_optimizers()
    assert {group["weight_decay"] for group in mutated.optimizer.param_groups} == {0.5}


def test_one_member_moves_no_other() -> None:
    agents = [make("GRPO", i) for i in range(2)]
    texts, given = written(engines_for(agents)[0][0], agents), rewards(2)

    def trained(change: float) -> list[torch.Tensor]:
        own = [agent.clone() for agent in agents]
        with torch.no_grad():
            next(iter(own[0].actor.parameters())).add_(change)
        engine = StackedAdapters(own)
        for batch in own[0].arrange(engine, texts, given, rngs(2)):
            own[0].update(engine, batch)
        engine.release()
        return [p.detach().clone() for p in own[1].actor.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(0.0), trained(1.0), strict=True))


def test_what_does_not_stack_learns_alone_and_says_why() -> None:
    plain, dora = make("GRPO", 0), make("GRPO", 1)
    dora = type(dora)(actor_network=base(torch.float64), index=1, seed=1, lora_config={"r": 4, "use_dora": True})
    engines, name, why = engines_for([plain, dora])
    assert name == "sequential"
    assert len(engines) == 2
    assert "agent 1's actor" in why
    with pytest.raises(ConfigError, match=r"learner='fused' is not possible"):
        engines_for([plain, dora], "fused")
    other = make("GRPO", 2, group_size=2)
    engines, name, _ = engines_for([plain, other])
    assert name == "fused"
    assert [len(e.agents) for e in engines] == [1, 1]


@pytest.mark.parametrize("algo", sorted(WRITERS))
def test_gradients_do_not_depend_on_how_many_texts_are_run_at_once(algo: str) -> None:
    found = []
    for size in (1, 2, 4, None):
        agent = make(algo, 0, micro_batch_size=size)
        engine = StackedAdapters([agent])
        texts = written(engine, [agent])
        for batch in agent.arrange(engine, texts, rewards(2)[1:], rngs(1)):
            agent.update(engine, batch)
        engine.release()
        found.append(torch.cat([p.detach().reshape(-1) for p in agent.actor.parameters()]))
    assert all(float((x - found[0]).abs().max()) < EXACT for x in found[1:])
