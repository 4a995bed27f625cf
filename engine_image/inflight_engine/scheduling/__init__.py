"""What runs in each iteration: pure Python and numpy, no torch, no clock, no I/O."""
