"""`paddock bench`: puts one or more servers under the same loads and compares them."""
