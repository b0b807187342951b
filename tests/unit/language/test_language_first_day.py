"""A first day with language models: an example that keeps its base, texts that say what they count, mistakes named."""

from __future__ import annotations

import importlib.util
import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agilerl import errors
from agilerl.algorithms import DPO, GRPO, SFT
from agilerl.cli import app
from agilerl.errors import AgileRLWarning, EnvError
from agilerl.language import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, ReasoningGym, SFTGym, SyncMultiTurnVecEnv, TokenObservationWrapper
from agilerl.llm_envs.by_id import make_language_env
from agilerl.training.train_llm import (
    finetune_llm_multiturn,
    finetune_llm_preference,
    finetune_llm_reasoning,
    finetune_llm_sft,
)
from tests.differential.language_reference import LORA, base

ROWS = [{"question": question, "answer": "7"} for question in ("1+2=", "34+5=", "6=", "77+8=")]


def example() -> Any:
    path = Path(__file__).resolve().parents[3] / "examples" / "language_model.py"
    spec = importlib.util.spec_from_file_location("language_model_example", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_the_example_keeps_a_base_that_its_last_line_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One iteration after twenty steps of copying; the folder's name has a space."""
    peft = pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    example().main(iterations=1, out="a folder", enough=0.0)
    folder = tmp_path / "a folder"
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(folder / "base")
    assert peft.AutoPeftModelForCausalLM.from_pretrained(folder / "adapter").peft_config
    command = capsys.readouterr().out.strip().splitlines()[-1].removeprefix("next").split("agilerl ", 1)[1]
    small = ["--steps", "4", "--set", "evo_steps=4", "--set", "pop_size=2", "--set", "group_size=2"]
    sizes = [part for name in ("train_size", "test_size", "report_size", "batch")
             for part in ("--set", f"environment.kwargs.{name}=4")]  # fmt: skip
    result = CliRunner().invoke(app, [*shlex.split(command), *small, *sizes])
    assert result.exit_code == 0, result.output
    with pytest.raises(SystemExit, match="exists already"):
        example().main(iterations=1, out="a folder", enough=0.0)


def test_a_misspelt_task_shows_the_three_nearest_names() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="unknown task of reasoning-gym 'chain_summ'") as caught:
        make_language_env("reasoning/chain_summ", tiny_tokenizer("0123456789+="))
    text = str(caught.value)
    assert "Did you mean 'chain_sum'" in text
    assert text.count("'") <= 2 * 4, "the name that was given, and three"
    assert len(text) < 300
    with pytest.raises(EnvError, match="unknown environment"):
        make_language_env("reasonning/chain_sum", tiny_tokenizer("0123456789+="))


@pytest.mark.parametrize("algo", [GRPO, DPO, SFT])
def test_texts_of_an_agent_say_what_it_was_trained_on(algo: Any) -> None:
    agent = algo(actor_network=base(), lora_config=LORA, seed=0)
    kind = {"GRPO": "prompts", "DPO": "pairs", "SFT": "examples"}[algo.__name__]
    assert str(agent).splitlines()[-1] == f"trained   0 {kind}"


def test_what_is_maximised_is_said_where_it_is_no_reward(capfd: pytest.CaptureFixture[str]) -> None:
    pairs = [{"prompt": f"{n}+1=", "chosen": "7", "rejected": "3", "completion": "7"} for n in range(3)]
    for algo, kind, train, said in (
        (DPO, PreferenceGym, finetune_llm_preference, "fitness: beta times the margin of the chosen"),
        (SFT, SFTGym, finetune_llm_sft, "fitness: log-probability of a token"),
    ):
        gym = kind(pairs[:2], pairs[2:], base().tokenizer, data_batch_size_per_gpu=2)
        train([algo(actor_network=base(), lora_config=LORA, seed=0)], gym, max_steps=2)
        captured = capfd.readouterr()
        assert said in captured.out + captured.err


def test_no_notice_of_transformers_to_its_developers_is_passed_on(tmp_path: Path) -> None:
    folder = tiny_base(tmp_path, tiny_tokenizer("0123456789+="), hidden_size=8, layers=1, heads=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GRPO.population(1, model_name=folder, lora_config=LORA, seed=0)


class Deaf:
    """A game that gives nothing for anything."""

    def reset(self, seed: int | None = None) -> str:
        return "1"

    def step(self, text: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "2", 0.0, True, False, {}


def test_equal_rewards_in_a_whole_generation_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def agents() -> list[Any]:
        return GRPO.population(
            2, actor_network=base(), lora_config=LORA, seed=0, group_size=2, max_output_tokens=3, batch_size=8
        )

    said = r"every iteration of every member had a mean reward of 0: equal rewards teach nothing\. fix:"
    monkeypatch.setattr(errors, "_warned", set())
    env = SyncMultiTurnVecEnv(
        lambda: TokenObservationWrapper(Deaf(), base().tokenizer, max_turns=2), batch_size=2, group_size=2
    )
    with pytest.warns(AgileRLWarning, match=said):
        finetune_llm_multiturn(agents(), env, max_steps=8, test_games=2, verbose=False, seed=0)
    monkeypatch.setattr(errors, "_warned", set())
    with pytest.warns(AgileRLWarning, match=said):  # one member, one iteration a generation
        finetune_llm_multiturn(
            agents()[:1], env, max_steps=4, test_games=2, verbose=False, seed=0, evaluation_interval=1
        )
    monkeypatch.setattr(errors, "_warned", set())
    test = [{"question": "9=", "answer": "9"}]
    for reward, warns in ((lambda c, a, q: 0.0, True), (lambda c, a, q: float(len(c)), False)):
        gym = ReasoningGym(ROWS, test, base().tokenizer, reward, data_batch_size_per_gpu=2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finetune_llm_reasoning(agents(), gym, max_steps=8, verbose=False, seed=0)
        assert any("equal rewards teach nothing" in str(each.message) for each in caught) == warns
