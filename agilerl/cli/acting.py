"""What evaluate, export, record and push do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from agilerl.algorithms import find_algorithm
from agilerl.api import load
from agilerl.cli.as_json import show
from agilerl.cli.output import evaluation_lines, unfinished_line
from agilerl.errors import ConfigError, NotAvailableYetError
from agilerl.runs.directory import RunDirectory
from agilerl.runs.names import run_command
from agilerl.views.export import export_onnx, export_team
from agilerl.views.hub import as_typed, is_address, local_run
from agilerl.views.hub_push import bundle_of, push_bundle
from agilerl.views.report import write_report


def evaluate(
    run: Path, episodes: int, seed: int | None, device: str, max_steps: int | None, split: str | None, as_json: bool,
    typed: Sequence[str],
) -> None:  # fmt: skip
    """Score the best agent of a run and print it; typed: options of episodes that the command line has."""
    asked, run = as_typed(run), local_run(run)
    loaded = load(run, device)
    seeded = {} if seed is None else {"seed": seed}
    if not loaded.best.learns_language and not loaded.best.environment:
        raise ConfigError(
            f"{run} was trained in an environment that a script handed over, and a command cannot make it. "
            f"fix: agilerl.load({str(run)!r}).best.evaluate(env=...) in Python, with that environment."
        )
    limited = {} if max_steps is None else {"max_steps": max_steps}
    if loaded.best.learns_language:
        if typed:
            raise ConfigError(
                f"--{typed[0].replace('_', '-')} is of episodes; a language policy answers every prompt of a split, "
                "greedily. fix: --split report."
            )
        evaluation = loaded.best.evaluate(split)
    elif split is not None:
        raise ConfigError(f"--split is of language policies, not {loaded.manifest.algorithm.name}. fix: --episodes.")
    else:
        evaluation = loaded.best.evaluate(episodes=episodes, **seeded, **limited)
    if (unfinished := unfinished_line(run)) is not None:
        typer.echo(unfinished, err=True)
    facts = {"run": asked, "env_id": loaded.manifest.environment.name, **seeded, **evaluation.as_dict()}
    show("evaluate", as_json, evaluation_lines(loaded, evaluation), **facts)


def export(run: Path, out: Path | None, onnx: bool, as_json: bool) -> None:
    """Export the best policy of a run."""
    if (lines := exported_adapter(run, out, onnx)) is not None:
        show("export", as_json, lines, **{key: value for key, _, value in (line.partition("  ") for line in lines)})
        return
    best, target = load(run, "cpu").best, out or run / "best" / "policy.onnx"
    is_team = hasattr(best, "grouped_agents")  # one file for each group of agents
    reports = list(export_team(best, target).values()) if is_team else [export_onnx(best, target)]
    lines = [line for report in reports for line in (f"onnx  {report.path}", f"check  {report}")]
    show("export", as_json, lines, onnx=[vars(report) for report in reports])


def exported_adapter(run: Path, out: Path | None, onnx: bool) -> list[str] | None:
    """Write the adapter of a language policy in PEFT format; None for any other run.

    Raises:
        NotAvailableYetError: ONNX of a language policy.
    """
    manifest = RunDirectory.open(run).manifest()
    cls = find_algorithm(manifest.algorithm.name)
    if not cls.learns_language:
        return None
    if onnx:
        raise NotAvailableYetError(
            f"{manifest.algorithm.name}: ONNX of language policies is not written. "
            f"fix: `{run_command('export', run)}` writes a folder that PEFT and vLLM read."
        )
    target = run / "adapter" if out is None else out
    agent = load(run, "cpu").best
    agent.save_pretrained(target)
    base = agent.base.source or "a base that was made in memory"
    return [f"peft  {target}", f"base  {base}", f"load  PeftModel.from_pretrained(base_model, {str(target)!r})"]


def film(run: Path, format: str | None, episodes: int, seed: int | None, out: Path | None, as_json: bool) -> None:
    """Film the best agent of a run."""
    loaded = load(run, "cpu")
    if out is None and is_address(run):  # local copies stay as they are
        out = Path(f"rollout.{format or 'webp'}")
    path = loaded.record(out, format=format, episodes=episodes, seed=seed)
    report = write_report(run) if out is None else None
    size = path.stat().st_size
    lines = [f"film  {path}  ({size / 1000:.0f} kB)", *([] if report is None else [f"report  {report}"])]
    show("record", as_json, lines, film=path, bytes=size, report=report)


def push(
    run: Path, to: str, private: bool, message: str | None, licence: str | None, with_film: bool, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Push a run to the Hugging Face Hub, or print what would be pushed."""
    if with_film and not dry_run:
        typer.echo(f"film  {load(run, 'cpu').record()}", err=as_json)
    with bundle_of(run, to, licence) as bundle:
        for note in bundle.notes:
            typer.echo(f"note: {note}", err=True)
        sizes = {name: (bundle.folder / name).stat().st_size for name in bundle.names}
        commit, card = message or bundle.title, bundle.card
        url = None if dry_run else push_bundle(bundle, private=private, message=message)
    address = f"hf://{to}"
    facts: dict[str, Any] = {"repo": to, "address": address, "url": url, "dry_run": dry_run, "files": sizes}
    lines = [f"pushed  {url}", f'load  agilerl.load("{address}")']
    if url is None:
        files = [f"file  {name}  ({size / 1000:.1f} kB)" for name, size in sizes.items()]
        lines = [*files, f"commit  {commit}\n", card.removesuffix("\n")]
    show("push", as_json, lines, **facts, commit=commit, card=card, notes=list(bundle.notes))
