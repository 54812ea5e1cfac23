"""Schedules for a range of sizes: what is asked, captures at several sizes, and the expressions that they agree on."""
