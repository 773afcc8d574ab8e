"""Learning from recorded traces: rounds around TRL's trainers."""
