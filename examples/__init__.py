"""What one can build on Minka."""
