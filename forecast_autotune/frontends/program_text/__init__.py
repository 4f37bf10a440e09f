"""The source text that a program is known by: functions and kernels with all the code they reach."""
