"""The world: devices over their own protocols. Drivers do not know each other."""
