"""What can be told of a config without compiling it."""
