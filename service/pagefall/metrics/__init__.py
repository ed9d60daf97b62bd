"""Prometheus metrics: what `/metrics` tells, family by family. docs/metrics.md has them all in one table.

Counts of the actors are read from their snapshots when someone asks (`scheduler`, `pools`, `tiers`); what only shows
while it happens is counted then (`traffic`: `requests`, `hit_rate`, `loop_lag`). `registry` puts them together.
"""
