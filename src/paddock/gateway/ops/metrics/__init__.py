"""`/metrics`: all metrics in one scrape, which loads no model and waits for none."""
