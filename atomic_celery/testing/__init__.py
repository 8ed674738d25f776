"""What helps to try a fleet out before there is one."""
