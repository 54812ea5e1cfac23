"""Schedules for a range of sizes: captures at several sizes, and expressions that fit all of them."""
