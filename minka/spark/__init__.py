"""Minka and Spark: the data source and the jobs. It needs the extra: pip install "minka[spark]"."""
