"""Ground floor: streams of random numbers, trees, files, checkpoints, spaces and options; imports nothing above it."""
