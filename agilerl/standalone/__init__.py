"""Files that leave this package with a policy: they import nothing of it."""
