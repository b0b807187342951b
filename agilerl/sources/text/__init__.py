"""Sources for language policies: prompts, pairs, examples and games of several turns."""
