"""The operator page: its server, and in page/ what the browser gets."""
