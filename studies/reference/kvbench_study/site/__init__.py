"""Results site: static pages of the committed reference results. Needs the standard library
only.
"""
