"""A declared field of a request is an option of the commands, a keyword of `agilerl.train`, and is recorded."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from agilerl.cli.main import app
from agilerl.cli.options import takes
from agilerl.cli.train import TrainOptions
from agilerl.cli.training import OF_GROUPS
from agilerl.runs.request import KEYWORDS, RECORDED, Option, ResumeRequest, RunRequest, options_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wider(RunRequest):
    patience_seconds: Annotated[float | None, Option("Seconds to wait.", metavar="N", example="5")] = None


@pytest.mark.parametrize(("words", "seconds"), [([], None), (["--patience-seconds", "2.5"], 2.5)])
def test_a_new_field_is_an_option_after_the_others(words: list[str], seconds: float | None) -> None:
    asked: list[Wider] = []

    def command(options: TrainOptions, request: Wider) -> None:
        asked.append(request)

    wider = typer.Typer()
    wider.command()(takes(TrainOptions, Wider)(command))
    result = CliRunner().invoke(wider, ["CartPole-v1", "--workers", "3", *words])
    assert (result.exit_code, asked) == (0, [Wider(workers="3", patience_seconds=seconds, out=asked[0].out)])
    lines = CliRunner().invoke(wider, ["--help"]).output
    assert lines.index("--tensorboard") < lines.index("--patience-seconds") < lines.index("--track")


def test_declared_options_are_recorded_where_they_are_not_the_default() -> None:
    assert RECORDED == ("tensorboard",)
    assert [RunRequest(tensorboard=value).changed(RECORDED) for value in (None, False, True)] == [
        {},
        {},
        {"tensorboard": True},
    ]


def test_each_verb_has_the_options_of_its_request() -> None:
    for verb, request in (("train", RunRequest), ("resume", ResumeRequest)):
        lines = CliRunner().invoke(app, [verb, "--help"]).output
        for name, option in options_of(request).items():
            flag = option.flag or f"--{name.replace('_', '-')}"
            assert (flag.partition("/")[0] in lines) == (verb == "train" or option.on_resume), name
    assert {"workers", "arrivals"} < KEYWORDS
    assert not {"tensorboard", "track", "imports"} & KEYWORDS
    assert [name for name in OF_GROUPS if name not in options_of(ResumeRequest) or name in options_of(RunRequest)] == [
        "tensorboard", "test_episodes", "track",
    ]  # fmt: skip
    assert {"steps", "settings", "carry_envs", "strict_replay", "restart", "allow_other_kernels"} < {*OF_GROUPS}
    assert not {"out", "minutes", "workers", "ray", "allow_insecure_ray", "arrivals", "device"} & {*OF_GROUPS}
