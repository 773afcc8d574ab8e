"""Completions in, verdicts and rewards out. Knows no model, no engine and no file of a run."""
