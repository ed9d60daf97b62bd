"""The web console: files for a browser, and what reads them out of the package."""
