"""The commands. Each noun has its own file, which is imported when the noun is used."""
