"""Models: loading, paged attention, the step, sampling."""
