"""Run a manifest: validate and complete it, build its components, and start training."""
