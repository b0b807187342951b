"""Records of a run, and the sinks that write, display or send them."""
