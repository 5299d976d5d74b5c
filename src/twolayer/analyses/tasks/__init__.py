"""What a student keeps of one task while it learns another."""
