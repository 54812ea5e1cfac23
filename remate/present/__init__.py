"""What people see: texts, tables, plots, the report, traces."""
