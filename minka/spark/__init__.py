"""Minka on Spark: the data source `minka`, and jobs over whole keyspaces. Needs `pip install "minka[spark]"`."""
