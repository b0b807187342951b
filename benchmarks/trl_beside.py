"""GRPO and DPO beside TRL: equal model, adapter, data and steps. It prints one JSON line a round.

    python benchmarks/trl_beside.py FOLDER --trl PATH_OF_A_PYTHON_WITH_TRL --rounds 3

FOLDER holds a start of benchmarks/language.py. A step of GRPO is 32 prompts with 8 completions each, one of DPO 64
pairs. CPU seconds are those of training alone, children none; the order within a round alternates. For DPO both
adapters are judged by the same code on held-out pairs: how often the right answer gains over the wrong one, and by how
much.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from language import LORA, gym, questions
from runner import facts, package_commit

from agilerl.algorithms.dpo import DPO
from agilerl.algorithms.grpo import GRPO
from agilerl.language.algorithms.scoring import margins_by_pair
from agilerl.language.base import load_base
from agilerl.language.engines import SequentialAdapters
from agilerl.llm_envs import PreferenceGym
from agilerl.training.train_llm import finetune_llm_preference, finetune_llm_reasoning

GRPO_STEPS, DPO_STEPS, PAIRS = 20, 60, 64
RATES = {"grpo": 5e-4, "dpo": 5e-4}


def pairs(rows: list[dict[str, str]], seed: int) -> list[dict[str, str]]:
    """Right answers beside wrong ones that are off by 1 or by 10."""
    rng = np.random.default_rng(seed)
    off = rng.choice([-10, -1, 1, 10], len(rows)).tolist()
    return [
        {"prompt": r["question"], "chosen": r["answer"], "rejected": str(abs(int(r["answer"]) + d) or 1)}
        for r, d in zip(rows, off, strict=True)
    ]  # fmt: skip


def own_grpo(folder: Path, out: Path) -> float:
    env = gym(load_base(folder), 0, 32)
    agents = GRPO.population(
        1, seed=0, model_name=folder, lora_config=LORA, lr=RATES["grpo"], batch_size=256, variant="dapo",
        temperature=0.5, group_size=8, max_output_tokens=4, max_grad_norm=1.0, dynamic_sampling=0,
    )  # fmt: skip
    spent = _training_seconds(lambda hook: finetune_llm_reasoning(
        agents, env, max_steps=GRPO_STEPS * 32, evaluation_interval=GRPO_STEPS, verbose=False, seed=0, sinks=[hook]
    ))  # fmt: skip
    return spent / GRPO_STEPS


class Hook:
    """A sink that notes when the last iteration of training was made, before the evaluation."""

    def __init__(self) -> None:
        self.begun = self.last = time.process_time()

    def start(self, plan: Any, founders: Any) -> None:
        self.begun = time.process_time()

    def progress(self, env_steps: int, seconds: float) -> None:
        self.last = time.process_time()

    def generation(self, record: Any) -> None: ...
    def message(self, text: str) -> None: ...
    def close(self) -> None: ...


def _training_seconds(run: Any) -> float:
    hook = Hook()
    run(hook)
    return hook.last - hook.begun


def own_dpo(folder: Path, out: Path, train: list[dict[str, str]], held_out: list[dict[str, str]]) -> float:
    base = load_base(folder)
    env = PreferenceGym(train, held_out, base.tokenizer, data_batch_size_per_gpu=PAIRS, seed=0)
    agents = DPO.population(
        1,
        seed=0,
        model_name=folder,
        lora_config=LORA,
        lr=RATES["dpo"],
        batch_size=PAIRS,
        nll_alpha=0.0,
        max_grad_norm=1.0,
    )
    spent = _training_seconds(lambda hook: finetune_llm_preference(
        agents, env, max_steps=DPO_STEPS * PAIRS, evaluation_interval=DPO_STEPS, verbose=False, seed=0, sinks=[hook]
    ))  # fmt: skip
    agents[0].save_pretrained(out)
    return spent / DPO_STEPS


def judged(folder: Path, adapter: Path, held_out: list[dict[str, str]]) -> dict[str, float]:
    """Accuracy and mean margin of a stored adapter on pairs that it has not seen."""
    agent = DPO(model_name=folder, lora_config=LORA, seed=0)
    agent.load_pretrained(adapter)
    env = PreferenceGym(held_out, held_out, agent.base.tokenizer)
    (margins,) = margins_by_pair([SequentialAdapters(agent)], [agent], [env], "test")
    return {"accuracy": float((margins > 0).mean()), "margin": float(margins.mean())}


def opponent(python: str, what: str, folder: Path, out: Path, steps: int) -> dict[str, Any]:
    script = Path(__file__).with_name("opponent_trl.py")
    command = [python, "-W", "ignore", str(script), what, str(folder), "--steps", str(steps), "--out", str(out),
               "--lr", str(RATES[what])]  # fmt: skip
    environment = {"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "HOME": str(Path.home())}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--trl", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1000, help="of the start in FOLDER")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    splits = questions(asked.seed)
    train, held_out = pairs(splits["train"], 0), pairs(splits["report"], 1)
    order = np.random.default_rng(0).permutation(len(train)).tolist()
    stored = {"train": splits["train"], "pairs": [train[i] for i in order]}
    (asked.folder / "data.json").write_text(json.dumps(stored), encoding="utf-8")
    for number in range(asked.rounds):
        line: dict[str, Any] = {"round": number, "commit": package_commit()}
        with tempfile.TemporaryDirectory() as name:
            for who in ("own", "trl") if number % 2 else ("trl", "own"):
                out = Path(name) / who
                if who == "own":
                    grpo, dpo = own_grpo(asked.folder, out), own_dpo(asked.folder, out, train, held_out)
                else:
                    one = opponent(asked.trl, "grpo", asked.folder, Path(name) / "grpo", GRPO_STEPS)
                    two = opponent(asked.trl, "dpo", asked.folder, out, DPO_STEPS)
                    grpo, dpo = (x["result"]["cpu_seconds_per_step"] for x in (one, two))
                    line["trl"] = one["trl"]
                line |= {f"grpo_{who}": round(grpo, 4), f"dpo_{who}": round(dpo, 4), f"dpo_{who}_held_out":
                         judged(asked.folder, out, held_out)}  # fmt: skip
        line |= {"grpo_ratio": line["grpo_own"] / line["grpo_trl"], "dpo_ratio": line["dpo_own"] / line["dpo_trl"]}
        print(json.dumps({**line, **facts()}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
