"""Integer programs in Pyomo, solved by HiGHS, and what they share."""
