"""What the command's exit codes mean."""

from __future__ import annotations

OK, NOTHING, BAD_INPUT = 0, 1, 2

EPILOG = """exit codes:
  0  done
  1  nothing found, where --json prints an empty value, [] or {}; for doctor: a
     problem found; for tune-pending: keys are still pending, or the program failed
  2  bad input: a wrong argument, a broken file, a store that cannot be used
run ends with the program's own exit code."""
