"""The pinned release: fetching it, reading it, comparing it with another, its CPU build."""
