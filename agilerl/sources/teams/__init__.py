"""Sources for teams of several agents."""
