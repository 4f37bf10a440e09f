"""Recording the suite's spaces on a GPU, and what compilers say of them without one."""
