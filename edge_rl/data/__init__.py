"""Data stage: samples, hints, prompts, sampling order and procedural tasks. Light: no torch, no transformers."""
