"""The report on a cluster's history of load: figures, forecasts, proposals, a page."""
