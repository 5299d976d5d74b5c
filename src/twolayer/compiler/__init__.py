"""Programs on scalars: traced from functions of small arrays, then run by XLA, one GPU kernel or native code."""
