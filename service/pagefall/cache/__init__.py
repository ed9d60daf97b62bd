"""The prefix cache: keys, page pool, radix tree, eviction, leases. Pure: no clocks, loops or tensors here."""
