"""Ranks of a job that come to one decision, and devices that share the work on one key."""
