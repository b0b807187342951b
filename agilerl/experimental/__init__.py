"""Schemes and settings without a measured gain; a run loads the module that it asks for (`config.experimental`)."""
