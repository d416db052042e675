"""Recordings as they are written, kept and removed; reading them is controller.recording."""
