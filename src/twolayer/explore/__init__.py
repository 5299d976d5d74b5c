"""The explorer: a page in the browser that asks, and worker processes that compute."""
