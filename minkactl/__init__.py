"""The command line that shows a cluster and changes it."""
