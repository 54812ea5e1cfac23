"""Output for people: texts, tables, plots, the HTML report, traces."""
