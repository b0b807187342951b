"""Runs of language policies that are stopped, killed or given the wrong thing: what is saved goes on bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from agilerl.algorithms import find_algorithm
from agilerl.algorithms.base.registry import HyperparameterConfig, RLParameter
from agilerl.core.checkpoint import digest_tree
from agilerl.errors import RunError
from agilerl.hpo.mutation import Mutations
from agilerl.hpo.tournament import TournamentSelection
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import PreferenceGym, ReasoningGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning

ROOT = Path(__file__).resolve().parents[2]
SUMS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(6) for b in range(6)]
PAIRS = [{"prompt": s["question"], "chosen": s["answer"], "rejected": str(a)} for a, s in enumerate(SUMS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("base")
    tiny_base(made, tiny_tokenizer("0123456789+= "))
    return made


def reward(completion: str, answer: Any, question: str) -> float:
    return completion.count("7") / 4


def population(algo: str, folder: Path, size: int = 2) -> list[Any]:
    more: dict[str, Any] = {"max_output_tokens": 4, "group_size": 4} if algo == "GRPO" else {}
    limits = HyperparameterConfig(lr=RLParameter(min=1e-4, max=1e-1))
    found: list[Any] = find_algorithm(algo).population(
        size, model_name=folder, seed=3, batch_size=8, lr=3e-3, lora_config={"r": 2, "lora_alpha": 4},
        hp_config=limits, **more,
    )  # fmt: skip
    return found


def environment(algo: str, folder: Path) -> Any:
    tokenizer = load_base(folder).tokenizer
    if algo == "GRPO":
        return ReasoningGym(SUMS[:24], SUMS[24:], tokenizer, reward, data_batch_size_per_gpu=4)
    return PreferenceGym(PAIRS[:24], PAIRS[24:], tokenizer, data_batch_size_per_gpu=4)


def train(algo: str, folder: Path, run: Path | None, iterations: int = 8, **more: Any) -> list[Any]:
    function = finetune_llm_reasoning if algo == "GRPO" else finetune_llm_preference
    return function(
        population(algo, folder), environment(algo, folder), max_steps=iterations * 4 * 2, evo_steps=2,
        evaluation_interval=2, tournament=TournamentSelection(2, True, 2, seed=1),
        mutation=Mutations(0.3, 0, 0, 0, 0, 0.7, rand_seed=1), verbose=False, seed=5, resume=run, **more,
    )  # fmt: skip


def digests(agents: list[Any]) -> list[str]:
    return [digest_tree(agent.run_state()) for agent in agents]


class StopAt:
    """A callback that ends the process's run at a generation, as Ctrl-C does."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self, record: Any) -> None:
        if record.generation == self.number:
            raise KeyboardInterrupt


@pytest.mark.parametrize("algo", ["GRPO", "DPO"])
def test_a_run_that_was_interrupted_ends_as_if_it_had_not(algo: str, folder: Path, tmp_path: Path) -> None:
    whole = digests(train(algo, folder, None))
    with pytest.raises(KeyboardInterrupt):
        train(algo, folder, tmp_path / "run", callbacks=[StopAt(1)])
    resumed = train(algo, folder, tmp_path / "run")
    assert digests(resumed) == whole
    assert len(resumed[0].fitness) >= 3
    assert digests(train(algo, folder, tmp_path / "run")) == whole, "a finished run stays as it is"


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.faults.test_language_runs import digests, train
agents = train(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), iterations=16)
print("DIGESTS", *digests(agents))
"""


def start(algo: str, folder: Path, run: Path) -> subprocess.Popen[str]:
    code = textwrap.dedent(SCRIPT.format(root=str(ROOT)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code, algo, str(folder), str(run)], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["GRPO", "DPO"])
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_digests(
    algo: str, folder: Path, tmp_path: Path
) -> None:
    whole = digests(train(algo, folder, None, iterations=16))
    run, kills = tmp_path / "run", 0
    for attempt in range(60):
        process = start(algo, folder, run)
        seen = len(list((run / "checkpoints").glob("gen-*"))) if run.exists() else 0
        newest = _newest(run)
        while process.poll() is None and attempt < 12:
            if _newest(run) > newest or (seen == 0 and attempt == 0 and run.exists()):
                time.sleep(0.003 * attempt)  # a little further into the next one each time
                process.send_signal(signal.SIGKILL)
                kills += 1
                break
            time.sleep(0.002)
        out, _ = process.communicate()
        if process.returncode == 0:
            break
    assert out.split()[1:] == whole
    assert kills >= 3


def _newest(run: Path) -> str:
    return max((path.name for path in (run / "checkpoints").glob("gen-*")), default="")


def test_a_base_that_has_changed_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    agent = population("GRPO", folder, 1)[0]
    agent.save_checkpoint(tmp_path / "agent")
    other = tmp_path / "other"
    tiny_base(other, tiny_tokenizer("0123456789+= "), seed=1)
    stranger = population("GRPO", other, 1)[0]
    with pytest.raises(RunError, match="base model's weights are not those that the adapter was trained with"):
        stranger.load_checkpoint(tmp_path / "agent")
    with pytest.raises(KeyboardInterrupt):
        train("GRPO", folder, tmp_path / "run", callbacks=[StopAt(1)])
    with pytest.raises(RunError, match="base model's weights"):
        train("GRPO", other, tmp_path / "run")


def test_other_prompts_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train("GRPO", folder, tmp_path / "run", callbacks=[StopAt(1)])
    tokenizer = load_base(folder).tokenizer
    other = ReasoningGym(SUMS[1:25], SUMS[25:], tokenizer, reward, data_batch_size_per_gpu=4)
    with pytest.raises(RunError, match="learned from other prompts"):
        finetune_llm_reasoning(
            population("GRPO", folder), other, max_steps=64, evo_steps=2, evaluation_interval=2, verbose=False,
            tournament=TournamentSelection(2, True, 2, seed=1), seed=5,
            mutation=Mutations(0.3, 0, 0, 0, 0, 0.7, rand_seed=1), resume=tmp_path / "run",
        )  # fmt: skip
