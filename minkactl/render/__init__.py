"""What a terminal shows. Only this package knows rich."""
