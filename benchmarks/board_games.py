"""Claim: self-play beats players who do not learn. One JSON line per seed in results/<game>-<algo>.jsonl.

    python benchmarks/board_games.py                     # what is missing of seed 0, both games
    python benchmarks/board_games.py --games connect_four_v3 --seeds 0-4
    python benchmarks/board_games.py --summary

The shipped preset trains against the population's past (`opponents: self`); it never sees the players that it is tested
against. The best agent then plays, greedily, 500 games against a player that chooses uniformly among the legal actions,
and 500 against one that looks one step ahead (it wins at once where it can, else it keeps the other from that, else it
chooses at random), half of them from each seat. A connect-four agent counts as strong if it wins 98 % of the first and
80 % of the second; one of tic-tac-toe, where nobody who plays well loses, if it does not lose 95 % of either.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from runner import RESULTS, grouped, job_parser, package_commit, read_lines, run_jobs

GAMES = 500  # of one match
PREFIX = "pettingzoo.classic."
# game -> (what is counted, share against the random player, share against the lookahead player)
TARGETS = {"connect_four_v3": ("won", 0.98, 0.80), "tictactoe_v3": ("not_lost", 0.95, 0.95)}


def path_of(game: str, algo: str) -> Any:
    return RESULTS / f"{game}-{algo.lower()}.jsonl"


def match(team: Any, env_id: str, player: str, seed: int) -> dict[str, Any]:
    """What came of the games against one player, from each seat."""
    from agilerl.rollouts.matches import outcomes

    found = outcomes(team, env_id, player, GAMES, seed)
    seats = {f"won_from_seat_{k}": int((found[k::2] > 0).sum()) for k in range(2)}
    won, lost = int((found > 0).sum()), int((found < 0).sum())
    return {"games": GAMES, "won": won, "drawn": GAMES - won - lost, "lost": lost, **seats}


def run_one(job: dict[str, Any]) -> dict[str, Any]:
    """Train one seed from its preset and let the best agent play."""
    import agilerl

    key = job["key"]
    wall, cpu = time.perf_counter(), time.process_time()
    run = agilerl.train(key["env"], seed=key["seed"], out=None, verbose=False, config=job["config"])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    against = {player: match(run.best, key["env"], player, key["seed"]) for player in ("random", "lookahead")}
    counted, *least = TARGETS[key["env"].removeprefix(PREFIX)]
    shares = {
        player: (found["won"] if counted == "won" else GAMES - found["lost"]) / GAMES
        for player, found in against.items()
    }
    return {
        "key": key,
        "plays": "greedily",
        "against": against,
        counted: shares,
        "strong": all(share >= wanted for share, wanted in zip(shares.values(), least, strict=True)),
        "confirmed": run.result["confirmed"],
        "population_env_steps": run.result["env_steps_population"],
        "member_env_steps": run.result["env_steps_member"],
        "evaluation_env_steps": run.result["evaluation_env_steps"],
        "births": len(run.lineage),
        "cpu_seconds": round(cpu, 2),
        "wall_seconds": round(wall, 2),
        "history": [[round(f, 2) for f in generation] for generation in run.history],
    }


def jobs_for(game: str, algo: str, seeds: list[int], sets: list[str]) -> list[dict[str, Any]]:
    from agilerl.config import apply_sets, preset_for

    manifest = apply_sets(preset_for(PREFIX + game, algo), sets)
    base = {"env": PREFIX + game, "algo": algo, "preset": manifest.hash(), "commit": package_commit()}
    return [{"key": {**base, "seed": seed}, "config": manifest.as_dict()} for seed in seeds]


def summary(game: str, algo: str) -> None:
    """One line per (preset, commit)."""
    counted = TARGETS[game][0]
    for group, lines in grouped(read_lines(path_of(game, algo))):
        row = {
            **group,
            "seeds": [line["key"]["seed"] for line in lines],
            "strong": f"{sum(line['strong'] for line in lines)}/{len(lines)}",
            **{f"{counted}_against_{p}": [line[counted][p] for line in lines] for p in ("random", "lookahead")},
            "cpu_seconds": [line["cpu_seconds"] for line in lines],
        }
        print(json.dumps(row))


def main() -> None:
    parser = job_parser(__doc__, seeds="0", workers=1)
    parser.add_argument("--games", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--algo", default="IPPO", choices=["IPPO", "MAPPO"])
    parser.add_argument("--set", dest="sets", action="append", default=[], help="change the preset: a.b=v (tuning)")
    args = parser.parse_args()
    if args.job:
        print(json.dumps(run_one(json.loads(args.job))))
        return
    for game in args.games:
        if not args.summary:
            jobs = jobs_for(game, args.algo, args.seeds, args.sets)
            run_jobs(sys.argv[0], path_of(game, args.algo), jobs, args.workers)
        summary(game, args.algo)


if __name__ == "__main__":
    main()
