"""What operators read: health and metrics."""
