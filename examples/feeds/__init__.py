"""Workers that poll feeds: an example of duties. README.md says how to run it."""
