"""TRL on the same ground, in an environment of its own: `pip install trl peft`. It prints one JSON line.

python benchmarks/opponent_trl.py losses                     # its losses for given numbers
python benchmarks/opponent_trl.py grpo FOLDER --steps 20     # CPU seconds of a step, beside benchmarks/trl_beside.py
python benchmarks/opponent_trl.py dpo FOLDER --steps 40
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.1, "use_bias_correction_kl": False},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon": 0.2, "beta": 0.0},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.05, "use_bias_correction_kl": False},
    "gspo": {"loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4, "beta": 0.0,
             "importance_sampling_level": "sequence"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.5, "beta": 0.0},
}  # fmt: skip
ROWS, LENGTH = 6, 5


def numbers() -> dict[str, list[list[float]]]:
    """Log-probabilities, masks and advantages of `ROWS` completions, from sines: the same in every environment."""

    def wave(phase: float, scale: float, shift: float) -> list[list[float]]:
        return [[shift + scale * math.sin(phase + 1.7 * r + 0.9 * t) for t in range(LENGTH)] for r in range(ROWS)]

    lengths = [5, 3, 1, 4, 2, 5]
    return {
        "log_prob": wave(0.3, 0.5, -1.2), "old": wave(0.9, 0.5, -1.2), "reference": wave(2.0, 0.6, -1.3),
        "mask": [[float(t < n) for t in range(LENGTH)] for n in lengths],
        "advantage": [[math.cos(1.3 * r)] for r in range(ROWS)],
    }  # fmt: skip


def tiny(folder: Path) -> None:
    """A model that TRL can be made with; its outputs are not used."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<bos>", "<eos>", "<unk>", *"0123456789+="])}
    inner = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", unk_token="<unk>"
    ).save_pretrained(folder)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(words),
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
        )
    ).save_pretrained(folder)


def losses() -> dict[str, float]:
    """TRL's loss of every case."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    given = {name: torch.tensor(rows, dtype=torch.float64) for name, rows in numbers().items()}
    found = {}
    with tempfile.TemporaryDirectory() as name:
        tiny(Path(name))
        for case, settings in CASES.items():
            config = GRPOConfig(
                output_dir=name, per_device_train_batch_size=ROWS, num_generations=ROWS, max_completion_length=LENGTH,
                use_cpu=True, report_to=[], **settings,
            )  # fmt: skip
            trainer = GRPOTrainer(
                AutoModelForCausalLM.from_pretrained(name), reward_funcs=lambda completions, **_: [0.0] * ROWS,
                args=config, train_dataset=Dataset.from_list([{"prompt": "7+8="}] * ROWS),
                processing_class=AutoTokenizer.from_pretrained(name),
            )  # fmt: skip
            answer = (given["log_prob"], torch.ones_like(given["log_prob"]), None)
            trainer._get_per_token_logps_and_entropies = lambda *_, given_answer=answer, **__: (
                given_answer
            )  # numbers in place of a model's
            tokens = torch.ones(ROWS, LENGTH, dtype=torch.long)
            inputs = {
                "prompt_ids": tokens, "prompt_mask": tokens, "completion_ids": tokens,
                "completion_mask": given["mask"].long(), "advantages": given["advantage"][:, 0],
                "old_per_token_logps": given["old"], "ref_per_token_logps": given["reference"],
                "num_items_in_batch": given["mask"].sum(),
            }  # fmt: skip
            trainer.current_gradient_accumulation_steps = 1
            trainer.model.train()
            found[case] = float(trainer._compute_loss(trainer.model, inputs))
    return found


def adapter(peft: Any) -> Any:
    """The adapter that both libraries train."""
    return peft.LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def grpo(folder: Path, out: Path, steps: int, lr: float) -> dict[str, Any]:
    """`steps` steps of 32 prompts with 8 completions each; FOLDER/data.json has the questions."""
    import peft
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import GRPOConfig, GRPOTrainer

    rows = json.loads((folder / "data.json").read_text(encoding="utf-8"))["train"]
    answers = {row["question"]: row["answer"] for row in rows}

    def right(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [float(c == answers[p]) for p, c in zip(prompts, completions, strict=True)]

    config = GRPOConfig(
        output_dir=str(out), per_device_train_batch_size=256, num_generations=8, max_completion_length=4,
        max_steps=steps, learning_rate=lr, lr_scheduler_type="constant", loss_type="dapo",
        epsilon=0.2, epsilon_high=0.28, beta=0.0,
        temperature=0.5, max_grad_norm=1.0, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        logging_steps=1000, gradient_checkpointing=False, seed=0,
    )  # fmt: skip
    trainer = GRPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder), reward_funcs=right, args=config, peft_config=adapter(peft),
        train_dataset=Dataset.from_list([{"prompt": row["question"]} for row in rows]),
        processing_class=PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left"),
    )  # fmt: skip
    return _trained(trainer, out, steps)


def dpo(folder: Path, out: Path, steps: int, lr: float) -> dict[str, Any]:
    """`steps` steps of 64 pairs; FOLDER/data.json has them in the order in which they are learned."""
    import peft
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    rows = json.loads((folder / "data.json").read_text(encoding="utf-8"))["pairs"]
    config = DPOConfig(
        output_dir=str(out), per_device_train_batch_size=64, max_steps=steps, learning_rate=lr, beta=0.1,
        lr_scheduler_type="constant", max_grad_norm=1.0, use_cpu=True, bf16=False, report_to=[], save_strategy="no",
        logging_steps=1000, gradient_checkpointing=False, seed=0,
    )  # fmt: skip
    trainer = DPOTrainer(
        AutoModelForCausalLM.from_pretrained(folder), args=config, peft_config=adapter(peft),
        train_dataset=Dataset.from_list(rows), processing_class=PreTrainedTokenizerFast.from_pretrained(folder),
    )  # fmt: skip
    return _trained(trainer, out, steps)


def _trained(trainer: Any, out: Path, steps: int) -> dict[str, Any]:
    """CPU seconds a step of `train()`, and where the adapter is."""
    import torch

    torch.set_num_threads(1)
    begun = time.process_time()
    trainer.train()
    spent = time.process_time() - begun
    trainer.model.save_pretrained(out)
    return {"cpu_seconds_per_step": spent / steps, "adapter": str(out)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["losses", "grpo", "dpo"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--out", default="trl-adapter")
    asked = parser.parse_args()
    begun = time.process_time()
    train = {"grpo": grpo, "dpo": dpo}
    result: Any = (
        losses()
        if asked.what == "losses"
        else train[asked.what](Path(asked.folder), Path(asked.out), asked.steps, asked.lr)
    )
    print(json.dumps({"what": asked.what, "trl": version("trl"), "torch": version("torch"), "result": result,
                      "cpu_seconds": round(time.process_time() - begun, 2)}))  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
