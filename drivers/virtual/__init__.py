"""The virtual cell: a CX5130 on AMS/TCP with its PLC program and drives, and the simulated machine behind it."""
