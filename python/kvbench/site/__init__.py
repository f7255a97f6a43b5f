"""The results site: static pages of the committed reference results. Standard library alone."""
