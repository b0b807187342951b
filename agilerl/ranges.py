from agilerl.core.ranges import *  # noqa: F403
