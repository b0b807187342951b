"""A live view of runs in the browser, served on this machine alone. Nothing here imports torch."""
