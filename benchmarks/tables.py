"""Writes docs/benchmarks.md and the figures of README.md and docs/lab/evolution.md.

All figures come from the lines in benchmarks/results.

python benchmarks/tables.py
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean, median, mode, stdev
from typing import Any

import board_games
import evolution_page
import lockstep
import long_page
import offline
import offline_beside
import tried_page
from curve_tables import curve_rows
from runner import RESULTS, of_last_key, read_lines
from solve import ALL, path_of
from throughput_setups import SETUPS
from throughput_teams import TEAMS

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "benchmarks.md"
README_TASKS = (
    "CartPole-v1:DQN", "CartPole-v1:PPO", "MountainCar-v0:DQN", "LunarLander-v3:DQN", "LunarLander-v3:PPO",
    "LunarLander-v3:RainbowDQN", "LunarLanderContinuous-v3:TD3", "MountainCarContinuous-v0:TD3", "Pendulum-v1:SAC",
    "MaskedCartPole-v1:PPO", "mpe2.simple_speaker_listener_v4:MADDPG", "mpe2.simple_spread_v3:MAPPO",
)  # fmt: skip
BEGIN, END = "<!-- figures: python benchmarks/tables.py -->", "<!-- end of figures -->"
HEAD = """# Benchmarks

Made by `python benchmarks/tables.py` from the lines in `benchmarks/results`; every line holds its command, versions and
raw samples, and the commit if it is of our code: the last one that changed training code. All figures were measured on two
shared cores with one thread per process.
"""


def named(task: str) -> tuple[str, str]:
    """Environment and algorithm of a task, with what was changed on purpose."""
    env_id, *rest = task.split(":")
    return env_id, ", ".join(rest)


def latest_solve(task: str, evolution: bool, preset: str | None = None) -> list[dict[str, Any]]:
    """The lines of the last preset (or of this one) and commit in the file, by seed."""
    lines = [line for line in read_lines(path_of(task)) if line["key"]["evolution"] is evolution]
    lines = [line for line in lines if preset in (None, line["key"]["preset"])]
    if not lines:
        return []
    last = (lines[-1]["key"]["preset"], lines[-1]["key"]["commit"])
    lines = [line for line in lines if (line["key"]["preset"], line["key"]["commit"]) == last]
    return sorted(lines, key=lambda line: int(line["key"]["seed"]))


def readme_rows() -> list[str]:
    """The README's short form: solved counts of `README_TASKS`, speed, scaling."""
    rows = [
        "| environment, target | algorithm | solved | steps of the population, median | wall seconds, median |",
        "|---|---|---|---|---|",
    ]
    for task in README_TASKS:
        env_id, algo = named(task)
        lines = latest_solve(task, evolution=True)
        steps, wall = (median(line[k] for line in lines) for k in ("population_env_steps", "wall_seconds"))
        solved = sum(line["solved"] for line in lines)
        target = f"{env_id}, {ALL[task][0]:g}"
        rows.append(f"| {target} | {algo} | {solved} of {len(lines)} | {steps:,.0f} | {wall:.0f} |")
    return [*rows, "", speed_line(), *scaling_line()]


def speed_line() -> str:
    """The range of the throughput ratios, over all set-ups."""
    ratios = {"ours/original": list[float](), "ours/plain": list[float]()}
    for line in latest_throughput().values():
        for key, values in ratios.items():
            values += [line["median_ratio"][key]] if key in line["median_ratio"] else []
    original, plain = ratios.values()
    return (
        f"* Throughput: {min(original):.1f} to {max(original):.1f} times the steps per CPU second of `agilerl==2.58.0` "
        f"({len(original)} rows), {min(plain):.1f} to {max(plain):.1f} times a plain torch loop ({len(plain)} rows)."
    )


def scaling_line() -> list[str]:
    """What one update of eight members costs."""
    latest = [line for line in read_lines(RESULTS / "scaling.jsonl")
              if line["claim"].startswith("population update") and not line["mixed"] and line["units"] == 64][-1:]  # fmt: skip
    return [
        f"* One update of 8 members costs {line['ratio']['c 8 / plain 8']:.2f} of 8 plain torch updates (DQN, layers of 64 units)."
        for line in latest
    ]


def setup_of(line: dict[str, Any]) -> dict[str, Any]:
    """The set-up of a throughput line; the first lines had DQN's alone and did not name it."""
    return {**SETUPS, **TEAMS}[line.get("setup", "dqn")]


def label_of(line: dict[str, Any]) -> str:
    """Algorithm and environment of a throughput line, and whose lanes."""
    recurrent = "recurrent " if setup_of(line).get("recurrent") else ""
    lanes = " (EnvPool)" if setup_of(line).get("backend") == "envpool" else ""
    return f"{recurrent}{setup_of(line)['algo']} on {setup_of(line)['env']}{lanes}"


def latest_throughput() -> dict[tuple[str, str], dict[str, Any]]:
    """The latest line of each set-up and row."""
    lines = read_lines(RESULTS / "throughput.jsonl")
    return {(line.get("setup", "dqn"), line["row"]): line for line in lines}


def solve_rows() -> list[str]:
    """One row per environment and way, of the latest preset and commit in the file."""
    rows = [
        "## Do the presets solve their environments?",
        "",
        "`python benchmarks/solve.py` and, for the rows without evolution, `python benchmarks/solve.py --tasks",
        "CartPole-v1:DQN LunarLander-v3:DQN --no-evolution`. Seeds start at 0 and none is left out. Rows of one environment and one",
        "preset compare; a preset is named by the hash of its manifest, a run by its commit. Presets were tuned on seeds 100 and",
        "up. A score is the mean of 100 held-out greedy episodes, used neither for stopping nor for selection. Steps are training",
        "steps of the whole population; evaluation steps are listed separately.",
        "Seconds include training, evaluation, confirmation and evolution. One or two seeds ran at a time beside other jobs, so",
        "wall seconds are upper bounds.",
        "",
        "| environment, algorithm | threshold | evolution | solved | scores by seed | population steps, median | evaluation steps, median "
        "| CPU s, median | wall s, median | wall s, worst | preset, commit |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for task, (threshold, _, _) in ALL.items():
        env_id, algo = named(task)
        newest, without = latest_solve(task, True), latest_solve(task, False)
        beside = latest_solve(task, True, without[0]["key"]["preset"]) if without else []
        ways = [newest] if beside in ([], newest) else [newest, beside]
        for lines in filter(None, (*ways, without)):
            key = lines[0]["key"]
            middle = {k: median(line[k] for line in lines) for k in ("population_env_steps", "evaluation_env_steps",
                                                                     "cpu_seconds", "wall_seconds")}  # fmt: skip
            scores = " ".join(format(line["score"], ".0f") for line in lines)
            rows.append(
                f"| {env_id}, {algo} | {threshold:g} | {'on' if key['evolution'] else 'off'} "
                f"| {sum(line['solved'] for line in lines)}/{len(lines)} "
                f"| {scores} "
                f"| {middle['population_env_steps']:,.0f} | {middle['evaluation_env_steps']:,.0f} "
                f"| {middle['cpu_seconds']:.1f} | {middle['wall_seconds']:.1f} "
                f"| {max(line['wall_seconds'] for line in lines):.1f} | {key['preset'][:6]}, {key['commit'][:7]} |"
            )
    return rows


def throughput_rows() -> list[str]:
    """Latest line of each row of throughput.py."""
    rows = [
        "## Throughput: environment steps per CPU second",
        "",
        "`python benchmarks/throughput.py --original PYTHON`: population 4 (PPO: 6), 16 environments,",
        "one update per environment step (PPO: rollouts of 128 steps, 4 epochs), batch size 128. Training, evaluation, evolution and",
        "worker processes are all counted. Values are medians over rounds.",
        "",
        "| set-up, row | rounds | ours | plain torch, one after another | agilerl 2.58.0 | ours / plain | ours / agilerl 2.58.0 |",
        "|---|---|---|---|---|---|---|",
    ]
    for (_, row), line in latest_throughput().items():
        name = f"{label_of(line)}, {row}" + (" (updates)" if setup_of(line).get("offline") else "")
        speed = {side: f"{median(values):,.0f}" for side, values in line["steps_per_cpu_second"].items()}
        ratio = {other: f"{value:.1f}" for other, value in line["median_ratio"].items()}
        rows.append(
            f"| {name} | {len(line['raw'])} | {speed['ours']} | {speed.get('plain', '-')} | {speed.get('original', '-')} "
            f"| {ratio.get('ours/plain', '-')} | {ratio.get('ours/original', '-')} |"
        )
    return rows


def shares_rows() -> list[str]:
    """Latest line of each set-up of shares.py."""
    latest = {line["setup"]: line for line in read_lines(RESULTS / "shares.jsonl")}
    if not latest:
        return []
    rows = ["## Where do the CPU seconds go?", "", "`python benchmarks/shares.py`, in the set-ups above.", ""]
    for line in latest.values():
        parts = ", ".join(f"{part} {share:.0%}" for part, share in line["shares"].items())
        rows.append(f"* {label_of(line)}: {parts} of {line['cpu_seconds']:.1f} CPU seconds")
    return rows


def checkpoint_rows() -> list[str]:
    """Latest line of each claim of checkpoint.py."""
    latest = {line["claim"]: line for line in read_lines(RESULTS / "checkpoint.jsonl")}
    if not latest:
        return []
    return [
        "## What does a checkpoint cost?",
        "",
        "`python benchmarks/checkpoint.py`.",
        "",
        *map(_checkpoint_row, latest.values()),
    ]


def _checkpoint_row(line: dict[str, Any]) -> str:
    append = {"appended_rows" if k == "rows" else k: v for k, v in line.get("append", {}).items()}
    parts = {**line, **append, **line.get("resume", {})}
    numbers = {k: v for k, v in parts.items() if isinstance(v, int | float) and not isinstance(v, bool) and k != "cpus"}
    texts = [f"{k.replace('_', ' ')} {f'{v:,}' if isinstance(v, int) else f'{v:.3g}'}" for k, v in numbers.items()]
    return f"* {line['claim']}: {', '.join(texts)}"


def replay_rows() -> list[str]:
    """Latest line of each claim of replay.py."""
    latest = {line["claim"]: line for line in read_lines(RESULTS / "replay.jsonl")}
    if not latest:
        return []
    rows = [
        "## What does a replay buffer cost?",
        "",
        "`python benchmarks/replay.py`: cost of adding one vector step of 16 rows and of sampling 4 batches of 128 rows.",
        "",
    ]
    for claim, line in latest.items():
        values = line.get("median") or line["bytes"]
        rows.append(f"* {claim.removeprefix('replay, ')}: " + ", ".join(f"{k} {v:,.0f}" for k, v in values.items()))
    return rows


def scaling_rows() -> list[str]:
    """Latest line of each claim of scaling.py."""
    rows = ["## What does a larger population cost?", "", "`python benchmarks/scaling.py`.", ""]
    latest: dict[str, dict[str, Any]] = {}
    for line in read_lines(RESULTS / "scaling.jsonl"):
        units = f" ({line['units']} units{', mixed widths' if line['mixed'] else ''})" if "units" in line else ""
        latest[line["claim"] + units] = line
    for claim, line in latest.items():
        values = line["median"]
        text = ", ".join(f"{k}: {v:g}" for k, v in values.items()) if isinstance(values, dict) else f"{values:g}"
        rows.append(f"* {claim}: {text}")
        if "ratio" in line:
            rows.append("  (" + ", ".join(f"{k} = {v:g}" for k, v in line["ratio"].items()) + ")")
    return rows


def lockstep_rows() -> list[str]:
    """lockstep.py's summary as a table."""
    rows = [
        "## Lockstep or one after another?",
        "",
        "`python benchmarks/lockstep.py`: mean fitness of the four members at equal member steps, with 95 % bootstrap",
        "intervals over seeds. Both sides use the same presets, steps and updates, without evolution and early stopping. In",
        "lockstep, members share experience as it arrives. One after another, later members of a generation see everything",
        "that earlier members collected in it.",
        "",
        "| environment | steps per member | seeds | lockstep | one after another | difference | CPU s, lockstep | CPU s, other |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for env_id in lockstep.STEPS:
        captured = io.StringIO()
        with redirect_stdout(captured):
            lockstep.summary(env_id)
        for text in captured.getvalue().splitlines():
            row = json.loads(text)
            cells = [
                f"{row[k][0]:.1f} [{row[k][1]:.1f}, {row[k][2]:.1f}]"
                for k in ("lockstep", "one_after_another", "difference")
            ]
            cpu = row["median_cpu_seconds"]
            rows.append(
                f"| {env_id} | {row['member_steps']:,} | {row['seeds']} | {' | '.join(cells)} "
                f"| {cpu[0]:.1f} | {cpu[1]:.1f} |"
            )
    return rows


def offline_rows() -> list[str]:
    """One row per task of offline.py, of the latest preset and commit in the file."""
    rows = [
        "## Do presets learn from data?",
        "",
        "`python benchmarks/offline.py` makes the data sets and trains on them; all seeds are listed. A score is the mean of 100",
        "held-out episodes. Updates are those of one member.",
        "",
        "| environment, algorithm, data | wanted | reached | scores by seed | mean return of the data | updates, median "
        "| CPU s, median |",
        "|---|---|---|---|---|---|---|",
    ]
    found = 0
    for task, wanted in offline.TASKS.items():
        lines = of_last_key(read_lines(offline.path_of(task)))
        if not lines:
            continue
        found += 1
        scores = ", ".join(f"{line['score']:.1f}" for line in lines)
        goals = {"at least {:g}": wanted.at_least, "below {:g}": wanted.below, "{:g} above the data": wanted.above_data}
        goal = next((text.format(value) for text, value in goals.items() if value is not None), "-")
        reached = f"{sum(bool(line['reached']) for line in lines)} of {len(lines)}" if goal != "-" else "-"
        of_data, updates, cpu = (
            median(pick(line) for line in lines)
            for pick in (
                lambda line: line["data"]["mean_return"],
                lambda line: line["updates_member"],
                lambda line: line["cpu_seconds"],
            )
        )
        rows.append(
            f"| {', '.join(task.split(':'))} | {goal} | {reached} | {scores} | {of_data:.1f} | {updates:,.0f} | {cpu:.0f} |"
        )
    return rows if found else []


def continuous_rows() -> list[str]:
    """Normalised scores on continuous data, ours beside d3rlpy's: a row per data set, a column per algorithm and side."""
    algos = offline.CONTINUOUS
    rows = [
        "## Offline, continuous: scores beside d3rlpy's",
        "",
        "`python benchmarks/offline.py --tasks Pendulum-v1 HalfCheetah-v5` and `python benchmarks/offline_beside.py --python PYTHON`,",
        "on the same files. Cells are mean ± standard deviation over seeds of normalised scores: 0 is random play, 100 the expert",
        "that made the data. Each score uses 100 held-out episodes; the number of seeds is in brackets where it is not 5. Both sides",
        "make the same number of updates per agent and evaluate over 8 episodes at the same points.",
        "",
        '* "chosen" is the agent that was best in these evaluations. Ours chooses from a population of four with evolution on',
        "  Pendulum and from one agent on HalfCheetah; d3rlpy has one agent.",
        '* "last" is the agent after the last update. For a population it is the mean of its members, whose ancestors were selected.',
        "",
        "d3rlpy uses its own defaults (256 units, other learning rates).",
        "",
        "| data, its mean normalised score (complete episodes only) | updates | which | "
        + " | ".join([*algos, *(f"d3rlpy {algo}" for algo in algos)])
        + " |",
        "|" + "---|" * (3 + 2 * len(algos)),
    ]
    found = 0
    for env_id in offline.ROWS:
        for quality in offline.QUALITIES:
            names = [f"{env_id}:{algo}:{quality}" for algo in algos]
            ours = [of_last_key(read_lines(offline.path_of(name))) for name in names]
            theirs = [of_last_key(read_lines(offline_beside.path_of(name))) for name in names]
            known = next((lines[0] for lines in ours if lines), None)
            if known is None:
                continue
            found += 1
            data = known["data"]  # of a replay the episodes are cut short, so that their returns are no scores
            of_data = offline.normalised(data["mean_return"], data["scores"]) if quality != "medium-replay" else None
            for which, mine in (("chosen", "normalised"), ("last", "last_normalised")):
                cells = [mean_and_spread([line[mine] for line in lines]) for lines in ours]
                cells += [
                    mean_and_spread([
                        offline.normalised(line["score" if which == "chosen" else "last"], line["key"]["scores"])
                        for line in lines
                    ])
                    for lines in theirs
                ]  # fmt: skip
                about = f"{env_id} {quality}{'' if of_data is None else f', {of_data:.0f}'} | {updates_of(algos, ours)}"
                rows.append(f"| {about if which == 'chosen' else ' | '} | {which} | {' | '.join(cells)} |")
    return rows if found else []


def updates_of(algos: Sequence[str], ours: Sequence[Sequence[dict[str, Any]]]) -> str:
    """ "3,000, CQL 1,000": how many an agent makes, by the algorithms that are made so; first what most of them make."""
    made = {algo: lines[0]["updates_member"] for algo, lines in zip(algos, ours, strict=True) if lines}
    usual = mode(made.values())
    return ", ".join([f"{usual:,}", *(f"{algo} {count:,}" for algo, count in made.items() if count != usual)])


def mean_and_spread(values: list[Any], usual: int = 5) -> str:
    """ "31.3 ± 2.0"; with the number of values where it is not the usual one; "-" of none."""
    if not values:
        return "-"
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{mean(values):.1f}{spread}" + ("" if len(values) == usual else f" ({len(values)})")


def board_rows() -> list[str]:
    """One row per seed of the latest preset of each board game."""
    rows = [
        "## Does self-play beat scripted players?",
        "",
        "`python benchmarks/board_games.py`: 500 greedy games against each player, half from each seat.",
        "",
        "| game | seed | against the random player: won, drawn, lost | against the lookahead player | CPU s |",
        "|---|---|---|---|---|",
    ]
    for game in board_games.TARGETS:
        lines = read_lines(board_games.path_of(game, "IPPO"))
        last = lines[-1]["key"]["preset"] if lines else None
        for line in (line for line in lines if line["key"]["preset"] == last):
            each = [", ".join(str(line["against"][player][k]) for k in ("won", "drawn", "lost"))
                    for player in ("random", "lookahead")]  # fmt: skip
            rows.append(f"| {game} | {line['key']['seed']} | {each[0]} | {each[1]} | {line['cpu_seconds']:.0f} |")
    return rows if len(rows) > 6 else []


def put_into(page: Path, rows: Sequence[str]) -> None:
    """Write the figures of a page that is written by hand otherwise."""
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text("\n".join([before + BEGIN, *rows, END]) + rest.split(END)[1], encoding="utf-8")


def main() -> None:
    parts = [
        HEAD.splitlines(), solve_rows(), curve_rows(), throughput_rows(), shares_rows(), replay_rows(), scaling_rows(),
        checkpoint_rows(),
        lockstep_rows(), offline_rows(), continuous_rows(), board_rows(),
    ]  # fmt: skip
    put_into(ROOT / "README.md", readme_rows())
    put_into(ROOT / "docs" / "lab" / "evolution.md", [*evolution_page.rows(), *long_page.rows(), *tried_page.rows()])
    OUT.write_text("\n\n".join("\n".join(part).rstrip() for part in parts if part) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
