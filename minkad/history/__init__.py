"""The history of a node's load: recorded once an interval, kept for some days in files of bounded size."""
