"""The relay's side of the pickers: their streams, the questions to the owner of a service, and picks without one."""
