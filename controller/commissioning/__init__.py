"""Commissioning: what a new machine's own sensors say of how it is wired and built, the steps, and their record."""
