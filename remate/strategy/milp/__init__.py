"""Integer programs in Pyomo, solved by HiGHS."""
