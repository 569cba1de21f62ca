"""`paddock bench`: loads of any kind on one or more servers, measured side by side."""
