"""Where the platform is, where it should be, and what the legs must do for it."""
