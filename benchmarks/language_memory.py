"""Memory of a population of adapters on one base, beside one member. One JSON line each, and the ratios.

    python benchmarks/language_memory.py --members 1,4

Every count runs in a process of its own: a base of 18 million parameters with random weights, GRPO on it, two
iterations. "tensors" are the bytes of the base, of all adapters with their frozen copies, and of the moments; "rss" is
the resident memory at the end, less that of the process before the base was made.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from runner import facts, package_commit

from agilerl.algorithms.grpo import GRPO
from agilerl.language.base import load_base
from agilerl.language.tiny import tiny_base, tiny_tokenizer
from agilerl.llm_envs import ReasoningGym
from agilerl.training.train_llm import finetune_llm_reasoning

ROWS = [{"question": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]


def resident() -> int:
    """Bytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def measured(members: int, learner: str, prompts: int) -> dict[str, Any]:
    """One process's line."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        tokenizer = tiny_tokenizer("0123456789+=")
        tiny_base(Path(name), tokenizer, hidden_size=432, layers=6, heads=8)
        before = resident()
        base = load_base(name)
        size = sum(p.numel() for p in base.model.parameters())
        env = ReasoningGym(
            ROWS[:80], ROWS[80:], base.tokenizer, lambda c, a, q: float(c.count("7")), data_batch_size_per_gpu=prompts
        )
        agents = GRPO.population(
            members, actor_network=base, seed=0, group_size=4, batch_size=4 * prompts, max_output_tokens=4,
            lora_config={"r": 8, "lora_alpha": 16},
        )  # fmt: skip
        finetune_llm_reasoning(
            agents, env, max_steps=2 * prompts * members, evaluation_interval=2, verbose=False, seed=0, learner=learner
        )
        after = resident()
    adapters = sum(
        t.numel() * t.element_size()
        for a in agents
        for n in a.registry.all_registered()
        for t in getattr(a, n).parameters()
    )
    moments = sum(
        t.numel() * t.element_size() for a in agents for s in a.optimizer.optimizer.state.values()
        for t in s.values() if isinstance(t, torch.Tensor)
    )  # fmt: skip
    return {
        "members": members, "learner": learner, "prompts": prompts, "base_parameters": size,
        "tensors": 4 * size + adapters + moments, "rss": after - before,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", default="1,4")
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--job")
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(measured(**json.loads(asked.job))))
        return
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for learner in ("fused", "sequential"):
        lines = []
        for members in map(int, asked.members.split(",")):
            job = json.dumps({"members": members, "learner": learner, "prompts": asked.prompts})
            command = [sys.executable, "-W", "ignore", __file__, "--job", job]
            done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
            lines.append(json.loads(done.stdout.splitlines()[-1]))
            print(json.dumps({**lines[-1], "commit": package_commit(), **facts()}), flush=True)
        ratios = {name: round(lines[-1][name] / lines[0][name], 3) for name in ("tensors", "rss")}
        print(json.dumps({"learner": learner, "members": lines[-1]["members"], "times_one": ratios}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
