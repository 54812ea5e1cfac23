"""What must be known of operators without torch: views, random ones, in-place forms."""
