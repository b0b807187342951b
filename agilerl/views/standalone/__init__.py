"""Files that are exported with a policy; they do not import this package."""
