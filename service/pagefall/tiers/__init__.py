"""What the cache controller works with: the host tier's memory, copies between tiers, and the client of the store."""
