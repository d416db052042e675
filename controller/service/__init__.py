"""The control process: loop, clock, requests, children, and what puts them together."""
