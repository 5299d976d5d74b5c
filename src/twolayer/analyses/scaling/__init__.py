"""Power laws in results: exponents with intervals, and the best width for a budget."""
