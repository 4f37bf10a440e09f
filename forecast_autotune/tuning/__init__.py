"""The loop: what to measure next, when to stop, and what is decided."""
