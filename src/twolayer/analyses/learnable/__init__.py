"""What of a target can be learned, and how fast."""
