"""Examples of programs built on Minka."""
