"""The front doors: each turns a call into a job, and a decision into a launch."""
