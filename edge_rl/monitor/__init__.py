"""What a run says about itself: metrics, progress on the console, and the report at the end."""
