"""Files for the page: received, described, kept for a while, served."""
