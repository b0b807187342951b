"""Data sets: reading, describing and recording them, and the replay of a run as one."""
