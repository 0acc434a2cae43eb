"""The machinery of the course: command line, pytest plugin, lab loader, checks of pages and of citations."""
