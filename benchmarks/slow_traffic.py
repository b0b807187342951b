"""A real slow simulator: one traffic light in Eclipse SUMO, a process behind a socket, by SUMO-RL.

    pip install sumo-rl eclipse-sumo
    PYTHONPATH=benchmarks agilerl train TrafficLight-v0 --import slow_traffic

Importing registers `TrafficLight-v0`: SUMO-RL's crossing of two roads with two lanes each, 4 phases, 21 features, 200
decisions an episode (1,000 simulated seconds). The reward is the library's default, the change of the waiting time, in
units of 100 s. A step takes about 5 to 20 ms, of SUMO's process and of this one; a reset starts SUMO anew, about 1 s.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import sumo

os.environ.setdefault("SUMO_HOME", sumo.SUMO_HOME)  # SUMO-RL looks for it where it is imported
SIMULATED_SECONDS = 1000


def make_traffic_light(**kwargs: Any) -> Any:
    """The environment of SUMO-RL, with the files that it brings."""
    import sumo_rl

    crossing = Path(sumo_rl.__file__).parent / "nets" / "2way-single-intersection"
    return sumo_rl.SumoEnvironment(
        net_file=str(crossing / "single-intersection.net.xml"),
        route_file=str(crossing / "single-intersection-gen.rou.xml"),
        single_agent=True,
        num_seconds=SIMULATED_SECONDS,
        add_system_info=False,
        add_per_agent_info=False,
        sumo_warnings=False,
        additional_sumo_cmd="--no-step-log",
        **kwargs,
    )


def register() -> None:
    """Register the id; a second call changes nothing."""
    if "TrafficLight-v0" not in gymnasium.registry:
        gymnasium.register("TrafficLight-v0", entry_point=f"{__name__}:make_traffic_light")


register()
