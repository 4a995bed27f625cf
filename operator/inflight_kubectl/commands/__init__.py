"""Modules of the commands, one for each; the command is `COMMAND`."""
