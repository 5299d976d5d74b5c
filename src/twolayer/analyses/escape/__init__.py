"""When training leaves its start."""
