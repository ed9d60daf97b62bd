"""The doctor: what a server's traffic says about its hit rate. Pure functions over requests that have been."""
