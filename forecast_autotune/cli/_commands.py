"""The verbs of the command."""

from __future__ import annotations

COMMANDS = {
    "list": ("listing", "what is decided here"),
    "show": ("show", "one decision: why, forecast beside measurement, what it beat"),
    "skills": ("skills", "what changing one knob did, and what searches taught, as measured"),
    "stats": ("stats", "size, hits, time saved, how honest the forecasts were"),
    "replay": ("replay", "tune against recorded spaces: loss, spend, honesty"),
    "run": ("run", "run a program with install() in effect"),
    "search": ("search", "new programs for a kernel: proposed, forecast, the promising tried in a box"),
    "forecast": ("forecast", "rank a kernel's configs for a GPU without touching one"),
    "pending": ("pending", "keys met where measuring was not allowed"),
    "tune-pending": ("tune_pending", "run a program to tune pending keys"),
    "warm": ("warm", "compile ahead of a start what the keys that are known will run"),
    "freeze": ("freeze", "end what programs in mode online try in real calls"),
    "tune": ("tune", "tune a suite or a program on all GPUs of a Ray cluster"),
    "coverage": ("coverage", "for which hardware, programs and keys decisions are missing"),
    "export": ("export", "write decisions and outcomes as JSON lines"),
    "import": ("import_", "take in exported decisions and outcomes"),
    "remote": ("remote", "the store that machines share: look, send, read, tidy, withdraw"),
    "prune": ("prune", "remove superseded decisions and what nothing uses any more"),
    "clear": ("clear", "remove everything, or one kernel"),
    "completion": ("completion", "a script that completes this command in your shell"),
    "doctor": ("doctor", "check compilers, devices, the store and the settings"),
}
"""Name to module and help line. No module is named after a builtin: once imported, a module `list` would hide the builtin
inside this package."""
