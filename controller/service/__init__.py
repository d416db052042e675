"""The control process: settings in, loop, requests, ring; and the commands that work on files."""
