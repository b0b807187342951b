"""The published training functions of language models: names, order and defaults of their arguments; a list returned."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agilerl.algorithms import DPO, GRPO, LLMPPO, LLMREINFORCE
from agilerl.algorithms.core.registry import HyperparameterConfig, RLParameter
from agilerl.errors import AlgorithmError, ConfigError, MutationError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, ReasoningGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning
from agilerl.utils.utils import create_population

# Position by position, as published.
REASONING = (
    "pop env=None env_fn=None init_hp=None save_elite=None elite_path=None wb=False evo_steps=None "
    "checkpoint_steps=None tournament=None mutation=None wandb_api_key=None wandb_project='AgileRL' wandb_entity=None "
    "wandb_run_name=None evaluation_interval=10 max_reward=None verbose=True accelerator=None max_steps=None "
    "num_epochs=None log_csv=False"
)
PREFERENCE = REASONING.replace("max_reward=None ", "")
ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(4) for b in range(4)]
PAIRS = [{"prompt": row["question"], "chosen": row["answer"], "rejected": "9"} for row in ROWS]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base")
    return tiny_base(made, tiny_tokenizer("0123456789+= "), hidden_size=8, layers=1, heads=2, context=32)


def reward(completion: str, answer: str, question: str) -> float:
    return float(completion == answer)


def reasoning_gym(base: Path) -> ReasoningGym:
    return ReasoningGym(
        train_dataset=ROWS[:12], test_dataset=ROWS[12:], tokenizer=load_base(base).tokenizer, reward_fn=reward,
        conversation_template=[{"role": "user", "content": "{question}"}], data_batch_size_per_gpu=4,
    )  # fmt: skip


def population(algo: str, base: Path) -> list[Any]:
    init_hp = {"ALGO": algo, "BATCH_SIZE": 4, "LR": 1e-3, "BETA": 0.01, "GROUP_SIZE": 2, "MAX_OUTPUT_TOKENS": 3}
    return create_population(
        algo=algo, net_config=None, INIT_HP={**init_hp, "POP_SIZE": 2}, population_size=2, model_name=str(base),
        hp_config=HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-2)), lora_config={"r": 2, "lora_alpha": 4},
    )  # fmt: skip


def evolution() -> dict[str, Any]:
    mutation = Mutations(0.5, 0, 0, 0, 0, 0.5, rand_seed=1)
    return {"tournament": TournamentSelection(2, True, 2, 1), "mutation": mutation}


@pytest.mark.parametrize(
    ("function", "published"), [(finetune_llm_reasoning, REASONING), (finetune_llm_preference, PREFERENCE)]
)
def test_the_arguments_are_the_published_ones_in_their_order(function: Callable[..., Any], published: str) -> None:
    found, further = [], []
    for parameter in inspect.signature(function).parameters.values():
        default = "" if parameter.default is inspect.Parameter.empty else f"={parameter.default!r}"
        (further if parameter.kind is inspect.Parameter.KEYWORD_ONLY else found).append(f"{parameter.name}{default}")
    assert " ".join(found) == published
    assert all("=" in name for name in further), "what is ours has a default, and no position"
    assert str(inspect.signature(function).return_annotation).startswith("list")


def test_the_published_agents_are_where_they_are_published() -> None:
    assert [cls.__name__ for cls in (GRPO, LLMPPO, LLMREINFORCE, DPO)] == ["GRPO", "LLMPPO", "LLMREINFORCE", "DPO"]


def test_reasoning_returns_the_population_as_a_list(base: Path, tmp_path: Path) -> None:
    agents = population("GRPO", base)
    found = finetune_llm_reasoning(
        agents, reasoning_gym(base), None, {"LR": 1e-3}, True, str(tmp_path / "elite"), evo_steps=1,
        evaluation_interval=1, max_steps=16, verbose=False, **evolution(),
    )  # fmt: skip
    assert type(found) is list
    assert [type(agent) for agent in found] == [GRPO, GRPO]
    assert [agent.steps[-1] for agent in found] == [8, 8], "max_steps counts the prompts of the whole population"
    assert len(found[0].fitness) == 2
    assert (tmp_path / "elite" / "adapter_config.json").is_file()


def test_num_epochs_takes_the_place_of_max_steps_and_each_member_may_have_its_own_environment(base: Path) -> None:
    made: list[ReasoningGym] = []

    def env_fn() -> ReasoningGym:
        made.append(reasoning_gym(base))
        return made[-1]

    found = finetune_llm_reasoning(
        population("GRPO", base), env_fn=env_fn, max_steps=4, num_epochs=1, evaluation_interval=3, verbose=False
    )
    assert len(made) == 2
    assert [agent.steps[-1] for agent in found] == [12, 12]


def test_preference_returns_the_population_as_a_list(base: Path) -> None:
    gym = PreferenceGym(PAIRS[:12], PAIRS[12:], load_base(base).tokenizer, data_batch_size_per_gpu=4)
    found = finetune_llm_preference(
        population("DPO", base), gym, evo_steps=1, evaluation_interval=1, max_steps=16, verbose=False, **evolution()
    )
    assert type(found) is list
    assert [type(agent) for agent in found] == [DPO, DPO]
    assert found[0].steps[-1] == 8


def test_both_refuse_what_does_not_go_together(base: Path) -> None:
    agents, gym = population("GRPO", base), reasoning_gym(base)
    with pytest.raises(ConfigError, match=r"exactly one of env= and env_fn=; got neither"):
        finetune_llm_reasoning(agents)
    with pytest.raises(ConfigError, match=r"exactly one of env= and env_fn=; got both"):
        finetune_llm_reasoning(agents, gym, lambda: gym)
    with pytest.raises(AlgorithmError, match=r"finetune_llm_preference: GRPO learns from rewards.*fix: DPO"):
        finetune_llm_preference(agents, gym)
    with pytest.raises(MutationError, match=r"base of language policies is frozen"):
        finetune_llm_reasoning(agents, gym, mutation=Mutations(0.5, 0.5, 0, 0, 0, 0))
