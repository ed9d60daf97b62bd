"""The command line: flags, files and environment become a validated `ServeConfig`."""
