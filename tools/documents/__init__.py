"""The documents: pages generated from code, links, module paths, and the snippets that tests run."""
