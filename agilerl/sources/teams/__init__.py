"""Sources whose members are teams of several agents."""
