"""What can be reported a schedule file, and done to it, without torch: checks, differences, explanations, edits."""
