"""Wires the stages for the doors: build them from a configuration, run them in order. The only floor that knows several."""
