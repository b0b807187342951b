"""From a manifest to a run: check and complete it, build what it names, and start it."""
