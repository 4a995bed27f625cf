"""One module per component: pure functions that give its command line and its configuration."""
