"""Classic-control environments as NumPy over all lanes, bit for bit what Gymnasium's single environments do."""

from __future__ import annotations

from agilerl.envs.acrobot import AcrobotLanes
from agilerl.envs.batch_lanes import BatchLanes
from agilerl.envs.cartpole import CartPoleLanes
from agilerl.envs.masked import MaskedCartPoleLanes, MaskedPendulumLanes
from agilerl.envs.mountain_car import MountainCarLanes
from agilerl.envs.pendulum import PendulumLanes

# Plain registered ids that have lanes of their own; tests/unit/test_envs_classic.py runs over this table.
FAST: dict[str | None, type[BatchLanes]] = {
    lanes.env_id: lanes
    for lanes in (
        AcrobotLanes,
        CartPoleLanes,
        MaskedCartPoleLanes,
        MaskedPendulumLanes,
        MountainCarLanes,
        PendulumLanes,
    )
}
