"""Engines that have not run on the device they are made for, or that nothing else needs."""
