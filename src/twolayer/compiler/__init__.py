"""Programs on single numbers: traced from small arrays, then run by XLA, one GPU kernel or native code."""
