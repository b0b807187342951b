"""The commands evaluate, export and record: their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agilerl.cli.commands import later
from agilerl.cli.errors import user_errors
from agilerl.cli.options import (
    AsJson,
    Debug,
    Device,
    Episodes,
    EpisodeSeed,
    Imports,
    RunOrAddress,
    RunPath,
    examples,
    is_typed,
    whole_option,
)

evaluate_run, export_run, film_run = later("acting", "evaluate"), later("acting", "export"), later("acting", "film")
app = typer.Typer(rich_markup_mode=None)


@app.command(
    epilog=examples(
        "agilerl evaluate runs/CartPole-v1/dqn-0001",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --episodes 1000 --seed 7",
        "agilerl evaluate runs/CartPole-v1/dqn-0001 --json",
    )
)
def evaluate(
    context: typer.Context,
    run: RunOrAddress,
    episodes: Episodes = 100,
    seed: EpisodeSeed = None,
    device: Device = "auto",
    max_steps: Annotated[
        int | None,
        whole_option("Cut episodes after N steps; default: as in training.", "--max-steps", example="1000", least=1),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Prompts of a language policy: report (default), test or train."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with every return.")] = False,
    imports: Imports = None,
    debug: Debug = False,
) -> None:
    """Score the best agent of a run over whole episodes.

    Prints the mean, the interquartile mean and a 95 % bootstrap interval.
    """
    with user_errors(debug, imports, run):
        options = {"episodes": episodes, "seed": seed, "max_steps": max_steps}
        typed = [name for name in options if is_typed(context, name)]
        evaluate_run(run, **options, device=device, split=split, as_json=as_json, typed=typed)


@app.command(
    epilog=examples(
        "agilerl export runs/CartPole-v1/dqn-0001 --onnx",
        "agilerl export runs/CartPole-v1/dqn-0001 --onnx --out policy.onnx",
        "agilerl export runs/reasoning-chain_sum/grpo-0001 --out adapter",
    )
)
def export(
    run: RunPath,
    onnx: Annotated[
        bool,
        typer.Option("--onnx", help="Write ONNX and compare it with the agent; the default of policies with spaces."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="The file; default: RUN/best/policy.onnx. For a language policy the folder; default: RUN/adapter.",
        ),
    ] = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Export the best policy of a run.

    To ONNX, or for a language policy to an adapter that PEFT reads. RUN/best/policy.py, where it is, loads a policy in
    plain PyTorch without an export.
    """
    with user_errors(debug, imports, run):
        export_run(run, out, onnx, as_json)


@app.command(
    epilog=examples(
        "agilerl record runs/CartPole-v1/dqn-0001",
        "agilerl record runs/CartPole-v1/dqn-0001 --episodes 3 --seed 7",
        "agilerl record runs/CartPole-v1/dqn-0001 --out film.gif",
    )
)
def record(
    run: RunOrAddress,
    format: Annotated[
        str | None, typer.Option(metavar="NAME", help="webp, gif or mp4; default: as the file is named, else webp.")
    ] = None,
    episodes: Episodes = 1,
    seed: EpisodeSeed = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The file; default: RUN/best/rollout.webp.")] = None,
    imports: Imports = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Film the best agent of a run; no display is needed."""
    with user_errors(debug, imports, run):
        film_run(run, format, episodes, seed, out, as_json)
