"""Every child process starts here: workers and how they end, tools, file locks, what of the machine is ours to use."""
