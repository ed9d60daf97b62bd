"""What runs next, and what a result means: pure decisions over the queue, the running table and the prefix cache.

A request's way: `intake` puts it in the queue, `plan` starts it and gives it a share of each step, `apply` gives it
its tokens and ends it.
"""
