"""The description of every route, and the page that shows it."""
