"""A program that makes the calls of `ray_programs`, and is no suite itself."""

from __future__ import annotations

from ray_programs import tuning_calls

for name, call in tuning_calls().items():
    if name != "broken":
        call()
