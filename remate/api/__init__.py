"""The functions of `import remate`: plan, fit, frontier, replan, rebind."""
