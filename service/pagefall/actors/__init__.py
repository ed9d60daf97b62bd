"""The actors: each owns its state alone and talks by messages over bounded queues."""
