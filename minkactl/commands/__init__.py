"""One file a noun; loaded when the noun is used."""
