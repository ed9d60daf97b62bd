"""A Pagefall storage backend: pages in one SQLite file. Installed, it is `--hicache-storage-backend sqlite`."""
