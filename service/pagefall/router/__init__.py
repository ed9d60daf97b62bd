"""The router: many workers behind one address, each request to the one that has most of its prompt and least to do."""
