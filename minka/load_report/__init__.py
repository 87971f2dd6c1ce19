"""What a cluster's history of load says, and what is to be done about it: figures, forecasts, proposals, a page."""
