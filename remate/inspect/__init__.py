"""What can be told of a schedule file, and done to it, without torch: checks, differences, explanations, edits."""
