"""Teams that see images: keys of convolutions reach the networks that read one image, and those that read all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from agilerl.algorithms.ippo import IPPO
from agilerl.algorithms.maddpg import MADDPG
from agilerl.algorithms.mappo import MAPPO
from agilerl.algorithms.matd3 import MATD3

IMAGE = spaces.Box(0, 255, (3, 12, 12), np.uint8)
CONVOLUTIONS = {"channel_size": [5], "kernel_size": [3], "stride_size": [2]}


@pytest.mark.parametrize("cls", [MADDPG, MATD3, IPPO, MAPPO])
def test_keys_of_convolutions_are_those_of_every_image(cls: Any) -> None:
    team = cls([IMAGE, IMAGE], [spaces.Discrete(2)] * 2, ["a_0", "b_0"], net_config={"encoder_config": CONVOLUTIONS})
    for name, network in team.evaluation_networks().items():
        kernels = [tuple(w.shape) for w in network.state_dict().values() if w.dim() == 4]
        images = 1 if cls is IPPO or name.startswith("actors") else 2
        assert kernels == [(5, 3, 3, 3)] * images, name
    seen = {agent: np.zeros((4, *IMAGE.shape), np.uint8) for agent in team.agent_ids}
    actions = team.get_action(seen)[0]
    assert {agent: actions[agent].shape for agent in actions} == {"a_0": (4,), "b_0": (4,)}
