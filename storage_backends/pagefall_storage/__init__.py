"""What a storage plug-in author needs, free of torch. The tiers below device memory build on it."""
