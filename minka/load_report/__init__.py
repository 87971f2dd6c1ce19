"""The load report: figures of a cluster's history, forecasts, proposals, and a page that shows them."""
