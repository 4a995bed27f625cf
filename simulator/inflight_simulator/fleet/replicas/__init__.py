"""A simulated replica: its scheduler, the noise of its steps, and its life."""
