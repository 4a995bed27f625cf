"""One module for each command; its command is `COMMAND`."""
