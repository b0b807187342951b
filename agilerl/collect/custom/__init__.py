"""Training loops for agents that bring their own `learn`."""
