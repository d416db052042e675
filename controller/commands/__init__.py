"""The commands that work on files: tables, check, replay. One module a command."""
