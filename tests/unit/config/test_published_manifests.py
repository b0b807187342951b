"""Training manifests of the published library pass `config check`; every bad key of one is named at once."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml
from published_manifests import MANIFESTS

from agilerl.config.check import problems_of
from agilerl.config.convert import convert
from agilerl.config.load import load_manifest
from agilerl.errors import AgileRLWarning

REFUSED = {"dqn with a memory": "a recurrent DQN is not there"}


def written(content: Any, tmp_path: Path) -> Path:
    path = tmp_path / "published.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_published_manifest_passes_the_check(name: str, tmp_path: Path) -> None:
    problems = [problem.message for problem in problems_of(written(MANIFESTS[name], tmp_path))]
    assert problems == [] if name not in REFUSED else REFUSED[name] in problems[0]


def test_keys_without_a_meaning_are_named_once_in_one_line(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", AgileRLWarning)
        load_manifest(written(MANIFESTS["cqn"], tmp_path))
    (line,) = [str(one.message) for one in said if one.category is AgileRLWarning]
    assert "INIT_HP.DATASET (--dataset, or the argument of the environment)" in line
    assert "\n" not in line


def test_what_a_published_key_means_is_kept(tmp_path: Path) -> None:
    text = convert(MANIFESTS["grpo, newer"]).content["algorithm"]
    assert (text["model_name"], text["lora_config"]["r"], text["group_size"]) == ("user/model", 16, 2)
    assert convert(MANIFESTS["maddpg"]).content["network"]["encoder_config"]["hidden_size"] == [64, 64]
    rainbow = convert(MANIFESTS["rainbow"]).content
    assert (rainbow["algorithm"]["n_step"], rainbow["replay_buffer"]["n_step"]) == (3, 3)
    assert convert(MANIFESTS["gspo"]).content["algorithm"]["min_output_tokens"] == 0, "null is the default"


def test_every_bad_key_is_named_at_once(tmp_path: Path) -> None:
    wrong = copy.deepcopy(MANIFESTS["ppo"])
    wrong["INIT_HP"] |= {"BATCHSIZE": 64, "GAMMAA": 0.9, "LR": -1, "EVAL_LOOP": "x"}
    wrong["MUTATION_PARAMS"] |= {"NO_MUTT": 0.1, "MIN_VF_COEF": 0.1}
    messages = [problem.message for problem in problems_of(written(wrong, tmp_path))]
    named = ("BATCHSIZE", "GAMMAA", "algorithm.lr", "EVAL_LOOP", "NO_MUTT", "one limit of vf_coef")
    for text in named:
        assert sum(text in message for message in messages) == 1, text
